"""Every mistake in a configuration has a message that helps: file, line, field, what is wrong, value, what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import ConfigError, load, loads, source
from k3observe.config.source import MAX_BYTES
from k3observe.plan import plan
from k3observe.rules import load as load_rules

SMALLEST = """\
version: 1
stack: kimi-k3
services:
  - name: kimi-k3
    engine: {name: vllm, version: "0.33"}
    targets: ["10.0.0.1:8000"]
"""


def messages(text: str) -> list[str]:
    """What is said of a configuration, up to and including its plan."""
    try:
        plan(loads(text, "k3.yaml"), load_catalogue(), load_rules())
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def instead(old: str, new: str) -> str:
    assert old in SMALLEST
    return SMALLEST.replace(old, new)


def with_service(line: str) -> str:
    return instead("    targets:", f"    {line}\n    targets:")


NAME_RULE = (
    "must be letters, digits, '.', '_' or '-' (at most 63), since it becomes a label and a file name"
)
REFUSALS = {
    "a target with a path": (
        instead("10.0.0.1:8000", "localhost:8000/metrics"),
        "k3.yaml:6: services[0].targets[0]: is a host and port without scheme or path: 'localhost:8000/metrics': "
        "write 'localhost:8000', the path /metrics goes to metrics_path"),
    "a target with a scheme": (
        instead("10.0.0.1:8000", "https://h:8000"),
        "k3.yaml:6: services[0].targets[0]: is a host and port without scheme or path: 'https://h:8000': "
        "write 'h:8000', the scheme goes to scheme: https"),
    "a target without a port": (
        instead("10.0.0.1:8000", "10.0.0.1"),
        "k3.yaml:6: services[0].targets[0]: has no port: '10.0.0.1': write e.g. 10.0.0.1:8000"),
    "a target that is a number": (
        instead('"10.0.0.1:8000"', "8000"),
        "k3.yaml:6: services[0].targets[0]: is no address: 8000: write host:port in quotes"),
    "a target twice": (
        instead('["10.0.0.1:8000"]', '["a:1", "b:1", "a:1"]'),
        "k3.yaml:6: services[0].targets[2]: stands twice: 'a:1': keep one of them"),
    "a scrape timeout above the interval": (
        SMALLEST + "prometheus:\n  scrape_interval: 10s\n  scrape_timeout: 30s\n",
        "k3.yaml:9: prometheus.scrape_timeout: is longer than scrape_interval 10s, which Prometheus refuses: '30s': "
        "use at most 10s"),
    "a window shorter than 4 scrape intervals": (
        SMALLEST + "alerts: {KVCacheUsageHigh: {window: 30s}}\n",
        "k3.yaml:7: alerts.KVCacheUsageHigh.window: is shorter than 4 scrape intervals of 15s: a lost scrape would "
        "empty it: '30s': use at least 1m"),
    "a threshold that can never be crossed": (
        SMALLEST + "alerts: {KVCacheUsageHigh: {threshold: 90}}\n",
        "k3.yaml:7: alerts.KVCacheUsageHigh.threshold: must be below 1, else it fires always or never: 90.0"),
    "a threshold that is always crossed": (
        SMALLEST + "alerts: {KVCacheUsageHigh: {threshold: 0}}\n",
        "k3.yaml:7: alerts.KVCacheUsageHigh.threshold: must be above 0, else it fires always or never: 0.0"),
    "a memory threshold that the engine's reservation crosses": (
        instead('"0.33"}', '"0.33", args: {gpu_memory_utilization: 0.92}}\n'
                "    accelerators: {per_node: 8}\n    sidecar: {collect: [gpu]}")
        + "alerts: {AcceleratorMemoryHigh: {threshold: 0.92}}\n",
        "k3.yaml:9: alerts.AcceleratorMemoryHigh.threshold: fires always: the engine itself reserves 0.92: 0.92: "
        "use more than 0.92, or leave it out: 0.95"),
    "a service twice": (
        SMALLEST + SMALLEST.partition("services:\n")[2],
        "k3.yaml:7: services[1].name: stands twice: 'kimi-k3': give each service its own name"),
    "an unknown engine": (
        instead("vllm", "vlllm"),
        "k3.yaml:5: services[0].engine.name: is no known engine: 'vlllm': did you mean 'vllm'?"),
    "a stack that cannot be a file name": (instead("stack: kimi-k3", "stack: kimi/k3"),
                                           f"k3.yaml:2: stack: {NAME_RULE}: 'kimi/k3'"),
    "a service that leads out of the folder": (instead("name: kimi-k3", "name: ../../etc"),
                                               f"k3.yaml:4: services[0].name: {NAME_RULE}: '../../etc'"),
    "a label that is none": (
        SMALLEST + "external_labels:\n  a-b: c\n", "k3.yaml:8: external_labels.a-b: is no label name: 'a-b'"),
    "a label of ours": (
        SMALLEST + "external_labels: {service: c}\n",
        "k3.yaml:7: external_labels.service: is a label of k3observe's own: 'service': choose another name"),
    "an unknown alert": (
        SMALLEST + "alerts: {KVCacheUsageHihg: {threshold: 0.9}}\n",
        "k3.yaml:7: alerts.KVCacheUsageHihg: is no alert: did you mean 'KVCacheUsageHigh'?"),
    "a misspelt key at the top": (
        SMALLEST + "lanugage: en\n", "k3.yaml:7: lanugage: is no known field: did you mean 'language'?"),
    "a misspelt key of a service": (
        with_service("modle: {}"), "k3.yaml:6: services[0].modle: is no known field: did you mean 'model'?"),
    "a misspelt key of an engine": (
        instead("version: \"0.33\"", "verson: \"0.33\""),
        "k3.yaml:5: services[0].engine.verson: is no known field: did you mean 'version'?"),
    "a misspelt flag": (
        instead('"0.33"', '"0.33", args: {gpu_memory_utilisation: 0.9}'),
        "k3.yaml:5: services[0].engine.args.gpu_memory_utilisation: is no known field: "
        "did you mean 'gpu_memory_utilization'?"),
    "a misspelt key of an alert": (
        SMALLEST + "alerts: {KVCacheUsageHigh: {treshold: 0.9}}\n",
        "k3.yaml:7: alerts.KVCacheUsageHigh.treshold: is no known field: did you mean 'threshold'?"),
    "a webhook without a place": (
        SMALLEST + "notify: {receivers: {ops: {webhook: {send_resolved: false}}}}\n",
        "k3.yaml:7: notify.receivers.ops.webhook: needs either url or url_file: {'send_resolved': False}"),
    "a misspelt key of a receiver": (
        SMALLEST + 'notify: {receivers: {ops: {webhook: {ulr: "http://a"}}}}\n',
        "k3.yaml:7: notify.receivers.ops.webhook.ulr: is no known field: did you mean 'url'?"),
    "a misspelt route": (
        SMALLEST + 'notify: {receivers: {ops: {webhook: {url: "http://a"}}}, routes: {defualt: ops}}\n',
        "k3.yaml:7: notify.routes.defualt: is not one of scale_out, rebalance, replace_device, restart_engine, "
        "investigate, critical, warning, info, watchdog, default: 'defualt': did you mean 'default'?"),
    "a misspelt key of an output": (
        SMALLEST + "outputs: {kubernetes: {namspace: llm}}\n",
        "k3.yaml:7: outputs.kubernetes.namspace: is no known field: did you mean 'namespace'?"),
    "a route to nobody": (
        SMALLEST + "notify: {routes: {default: ops}}\n",
        "k3.yaml:7: notify.routes.default: names a receiver that does not exist: 'ops': "
        "define it under notify.receivers"),
    "a password in a URL": (
        SMALLEST + 'grafana_url: "https://u:p@h"\n',
        "k3.yaml:7: grafana_url: carries a password: 'https://u:p@h': secrets are given by file only"),
    "a version that YAML reads as a number": (
        instead('"0.33"', "0.10"),
        "k3.yaml:5: services[0].engine.version: must stand in quotes: YAML reads 0.10 as the number 0.1: 0.1: "
        'write "0.1", or "0.10" if that is meant'),
    "a tag in place of a version": (
        instead('"0.33"', "latest"),
        "k3.yaml:5: services[0].engine.version: is a tag that moves, no version: 'latest': write what `k3observe "
        "doctor http://HOST:PORT/metrics` finds, or leave version out to take the newest known"),
    "a version that is none": (
        instead('"0.33"', '"0.28foo"'),
        "k3.yaml:5: services[0].engine.version: is no version: '0.28foo': write e.g. \"0.33\" in quotes"),
    "a duration without a unit": (
        SMALLEST + "alerts: {KVCacheUsageHigh: {for: 5}}\n",
        "k3.yaml:7: alerts.KVCacheUsageHigh.for: is no duration: 5: write 5s"),
    "experts that do not spread over the ranks": (
        instead('"0.33"}', '"0.33", args: {eplb: true, expert_parallel: true, tensor_parallel: 8, '
                "num_redundant_experts: 3}}\n    model: {preset: kimi-k3}"),
        "k3.yaml:5: services[0].engine.args.num_redundant_experts: leaves 896 experts with 3 copies, which are no "
        "whole number on each of 8 ranks: 3: use 0, or 8 more"),
    "an unknown preset": (
        with_service("model: {preset: kimi-k4}"),
        "k3.yaml:6: services[0].model.preset: is no known preset: 'kimi-k4': did you mean 'kimi-k3'?"),
    "targets and discovery": (
        with_service("discovery: {dns: {names: [k3.llm.svc], port: 8000}}"),
        "k3.yaml:4: services[0]: needs either targets or discovery"),
    "no services": (
        "version: 1\nstack: s\nservices: []\n", "k3.yaml:3: services: must not be empty: []"),
    "a format of the future": (instead("version: 1", "version: 2"), "k3.yaml:1: version: is not one of 1: 2"),
    "a key twice": (
        SMALLEST + "stack: other\n", "k3.yaml:7: stack: stands twice: keep one of them"),
    "an anchor": (
        SMALLEST + "external_labels: &a {x: b}\nidentity_labels: *a\n",
        "k3.yaml:7: identity_labels: anchors and aliases are not accepted: write the value out"),
    "bad syntax": (
        SMALLEST + "alerts: {\n",
        "k3.yaml:8: did not find expected node content: close the bracket with } or ], and quote a value that holds "
        "one of ,[]{}"),
    "a tab": (SMALLEST + "alerts:\n\tA: {}\n",
              "k3.yaml:8: is indented by a tab, which YAML does not take: use spaces"),
    "an open quote": (instead("stack: kimi-k3", 'stack: "kimi-k3'),
                      "k3.yaml:2: opens a quote that is not closed on its line: add the closing quote"),
    "a value that YAML keeps to itself": (instead("stack: kimi-k3", "stack: @x"),
                                          "k3.yaml:2: has a value that starts with @: put it in quotes"),
    "a colon within a value": (
        instead("stack: kimi-k3", "stack: k3: x"),
        "k3.yaml:2: mapping values are not allowed in this context: check the indentation, and quote a value that "
        "holds ': '"),
    "a line that is not aligned": (
        instead("    engine:", "   engine:"),
        "k3.yaml:5: did not find expected '-' indicator: indent it like the lines that it belongs to"),
    "a key without a space": (instead("stack: kimi-k3", "stack:k3"),
                              "k3.yaml:3: could not find expected ':': write a space after the colon of every key"),
    "a control character": (instead("stack: kimi-k3", "stack: k\x07"),
                            "k3.yaml:2: holds the character U+0007: remove it"),
    "a merge key": (with_service("<<: {role: decode}"),
                    "k3.yaml:6: services[0]: merge keys are not accepted: '<<': write the fields out"),
    "a template": (instead("stack: kimi-k3", "stack: {{ stack }}"),
                   "k3.yaml:2: stack: keys are plain strings: put a template's {{ ... }} in quotes"),
    "two documents": (SMALLEST + "---\n" + SMALLEST,
                      "k3.yaml:7: but found another document: keep one document: remove the line --- or ..."),
    "full-width colons": (
        "version：1\nstack：s\n",
        "k3.yaml:1: is no configuration: a mapping with version, stack and services is needed: "
        "write ': ' in place of the full-width ："),
    "a list at the top": (
        "- a\n", "k3.yaml:1: is no configuration: a mapping with version, stack and services is needed: "
                 "run `k3observe init` to write one"),
    "a text that does not fit its tag": (
        SMALLEST + "alerts: !!bool 2\n", "k3.yaml:7: alerts: does not fit its YAML type: '2'"),
    "nothing": (
        "", "k3.yaml:1: is no configuration: a mapping with version, stack and services is needed: "
            "run `k3observe init` to write one"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSALS)
def test_a_mistake_has_a_message_that_says_where_and_what_to_do(mistake: str) -> None:
    text, message = REFUSALS[mistake]
    assert messages(text) == [message]


def test_the_smallest_configuration_is_accepted() -> None:
    assert messages(SMALLEST) == []


def test_the_scrape_configuration_that_circulates_in_an_article_has_targets_that_are_refused(shared: Path) -> None:
    from k3observe.config.source import load_documents

    article = load_documents((shared / "samples/launch/prometheus-article.yml").read_text(), "article")[0].data
    target = article["scrape_configs"][0]["static_configs"][0]["targets"][0]
    [message] = messages(instead("10.0.0.1:8000", target))
    assert message.endswith(f"write {target.split('/')[0]!r}, the path /metrics goes to metrics_path")


def test_several_mistakes_are_reported_at_once_in_the_order_of_their_lines() -> None:
    text = instead("10.0.0.1:8000", "http://x:1/y").replace("stack: kimi-k3", 'stack: "a b"')
    found = messages(text + "lanugage: en\nprometheus: {scrape_interval: 5}\n")
    assert [message.split(": ")[0] for message in found] == ["k3.yaml:2", "k3.yaml:6", "k3.yaml:7", "k3.yaml:8"]


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    layers = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    [message] = messages("\n".join(layers))
    assert "anchors and aliases are not accepted" in message


@pytest.mark.parametrize("text", ["a: " + "[" * 900 + "]" * 900, "a: " + "[" * 50_000, "{" * 50_000,
                                  "\n".join(" " * i + "a:" for i in range(700))])  # fmt: skip
def test_what_is_nested_deeply_is_refused(text: str) -> None:
    [message] = messages(text)
    assert message.startswith("k3.yaml:")
    assert "nest" in message


def test_more_values_than_a_configuration_can_need_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_NODES", 2_000)
    [message] = messages("a: [" + "1," * 2_000 + "1]")
    assert "too large" in message


def test_a_file_over_1_mib_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "k3.yaml"
    file.write_text(SMALLEST + "#" * MAX_BYTES)
    with pytest.raises(ConfigError, match=r"k3.yaml: is larger than 1 MiB: split services over several stacks"):
        load(file)


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "k3.yaml"
    file.write_bytes(b"version: 1\nstack: \xb0\xa1\n")
    with pytest.raises(ConfigError, match=r"k3.yaml:2: is not UTF-8: save it as UTF-8"):
        load(file)


@pytest.mark.parametrize("encoding", ["GBK", "UTF-16"])
def test_a_file_in_another_encoding_is_told_how_to_be_converted(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "k3.yaml"
    file.write_bytes(f"# 注释\n{SMALLEST}".encode(encoding))
    with pytest.raises(ConfigError, match=rf"k3.yaml:1: is not UTF-8: .*iconv -f {encoding} -t UTF-8"):
        load(file)


def test_a_byte_order_mark_and_crlf_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "k3.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + SMALLEST.replace("\n", "\r\n").encode())
    assert load(file).config.stack == "kimi-k3"


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory: run `k3observe init`"):
        load(tmp_path / "k3observe.yaml")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
