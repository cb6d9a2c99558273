"""Launch commands as people keep them are read for what they mean to monitoring."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3observe.config import ConfigError, loads
from k3observe.config.launch import MAX_COMMAND, Launch, read
from k3observe.config.starter import starter

K3 = "moonshotai/Kimi-K3"

SAMPLES: dict[str, dict[str, Any]] = {
    "mindie.sh": {"tensor_parallel": 8, "max_num_seqs": 32, "max_model_len": 131072},
    "sglang-dp-attention.sh": {
        "tensor_parallel": 16, "data_parallel": 4, "dp_attention": True, "expert_parallel": True,
        "expert_parallel_size": 16, "gpu_memory_utilization": 0.85, "max_num_seqs": 64, "enable_metrics": True,
        "balancedness_report": "both"},
    "vllm-awq.sh": {"tensor_parallel": 8, "max_model_len": 131072, "quantization": "awq",
                    "gpu_memory_utilization": 0.92, "max_num_seqs": 16},
    "vllm-eplb-dp4.sh": {
        "tensor_parallel": 4, "data_parallel": 4, "expert_parallel": True, "eplb": True, "eplb_log_balancedness": True,
        "num_redundant_experts": 64, "gpu_memory_utilization": 0.9, "max_num_seqs": 16, "prefix_caching": True,
        "kv_cache_dtype": "fp8", "api_servers": 2},
    "vllm-kv-fp8.sh": {"tensor_parallel": 8, "max_model_len": 131072, "quantization": "fp4",
                       "kv_cache_dtype": "fp8_e5m2"},
    "vllm-tp4-ep2.sh": {"tensor_parallel": 4, "max_model_len": 131072, "quantization": "fp4", "expert_parallel": True},
    "vllm-tp8-fp4.sh": {"tensor_parallel": 8, "max_model_len": 131072, "quantization": "fp4",
                        "gpu_memory_utilization": 0.92, "max_num_seqs": 64},
}  # fmt: skip


def test_every_sample_is_expected_here(shared: Path) -> None:
    assert {path.name for path in (shared / "samples/launch").glob("*.sh")} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_read_flag_by_flag_and_its_configuration_loads(shared: Path, name: str) -> None:
    launch = read((shared / "samples/launch" / name).read_text(), name)
    assert launch.engine == name.split("-")[0].removesuffix(".sh")
    assert launch.args == SAMPLES[name]
    text, assumed = starter(launch)
    config = loads(text).config
    assert config.services[0].engine.name == launch.engine
    assert {key: getattr(config.services[0].engine.args, key) for key in launch.args} == launch.args
    assert any("is a stand-in: list your engines under targets" in line for line in assumed)


def test_a_flag_that_the_engine_never_had_is_carried_over_by_its_meaning_and_reported(shared: Path) -> None:
    launch = read((shared / "samples/launch/vllm-tp4-ep2.sh").read_text())
    assert launch.args["expert_parallel"] is True
    assert tuple(note.en for note in launch.notes) == (
        "--expert-parallel-size is no flag of vllm; it was carried over as expert_parallel_size",
        "vllm has no size of the expert-parallel group: with --enable-expert-parallel it is tensor x data "
        "parallel = 4, not 2",
    )


def test_mindies_metrics_port_is_assumed_and_said_not_taken_from_its_api_port(shared: Path) -> None:
    text, assumed = starter(read((shared / "samples/launch/mindie.sh").read_text()))
    assert '"127.0.0.1:1027"' in text
    assert any("metrics port 1027 is assumed" in line for line in assumed)
    assert any("MIES_SERVICE_MONITOR_MODE=1" in line for line in assumed)


COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "by module": (f"python -m vllm.entrypoints.openai.api_server --model {K3} -tp 8", {"tensor_parallel": 8}),
    "an equals sign": ("vllm serve M --max-num-seqs=16 -tp=8", {"max_num_seqs": 16, "tensor_parallel": 8}),
    "underscores": ("vllm serve M --max_num_seqs 16", {"max_num_seqs": 16}),
    "a JSON value": ("vllm serve M --enable-eplb --eplb-config '{\"num_redundant_experts\": 32}'",
                     {"eplb": True, "num_redundant_experts": 32}),
    "a dotted JSON value": ("vllm serve M --eplb-config.num_redundant_experts=32", {"num_redundant_experts": 32}),
    "a value with a unit": ("vllm serve M --max-model-len 128K", {"max_model_len": 131072}),
    "a decimal unit": ("vllm serve M --max-model-len 25.6k", {"max_model_len": 25600}),
    "line continuations": ("vllm serve M \\\n  -tp 8 \\\n --max-num-seqs 16\n",
                           {"tensor_parallel": 8, "max_num_seqs": 16}),
    "CRLF": ("vllm serve M \\\r\n  -tp 8 \\\r\n  --max-num-seqs 16\r\n", {"tensor_parallel": 8, "max_num_seqs": 16}),
    "a byte order mark": ("\ufeffvllm serve M -tp 8", {"tensor_parallel": 8}),
    "comments": ("# eight cards\nvllm serve M -tp 8  # not 4: -tp 4\n", {"tensor_parallel": 8}),
    "environment before it": ("HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve M -tp 2", {"tensor_parallel": 2}),
    "env and sudo": ("sudo -E env A=b vllm serve M -tp 8", {"tensor_parallel": 8}),
    "a script around it": ("#!/bin/bash\nset -e\ncd /opt; ulimit -n 65536 && vllm serve M -tp 8 | tee log &\nwait",
                           {"tensor_parallel": 8}),
    "variables of the script": ("TP=8\nexport SEQ=16\nvllm serve M -tp $TP --max-num-seqs ${SEQ} --block-size ${B:-64}",
                                {"tensor_parallel": 8, "max_num_seqs": 16, "block_size": 64}),
    "a frontend in the environment": ("export VLLM_USE_RUST_FRONTEND=1\nvllm serve M", {"rust_frontend": True}),
    "offloaded KV": ("""vllm serve M --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1"}'""",
                     {"kv_offload": True}),
    "switched off": ("vllm serve M --no-enable-prefix-caching --disable-log-stats",
                     {"prefix_caching": False, "enable_metrics": False}),
    "sglang serve": ("sglang serve --model-path M --tp-size=8 --mem-fraction-static=0.85 --enable-metrics",
                     {"tensor_parallel": 8, "gpu_memory_utilization": 0.85, "enable_metrics": True}),
    "a shell within a container": ("docker run -it quay.io/ascend/vllm-ascend:v0.11 bash -lc 'vllm serve M -tp 8'",
                                   {"tensor_parallel": 8}),
    "an abbreviated flag": ("vllm serve M --tensor-parallel 8 --max-num-seq 16",
                            {"tensor_parallel": 8, "max_num_seqs": 16}),
    "redirections": ("vllm serve --port 8000 --enforce-eager M -tp 8 > vllm.log 2>&1 &", {"tensor_parallel": 8}),
    "dotted KV transfer": ("vllm serve M --kv-transfer-config.kv_connector=OffloadingConnector", {"kv_offload": True}),
    "experts spread by a backend": (
        "sglang serve M --tp 8 --enable-metrics --moe-a2a-backend deepep",
        {"tensor_parallel": 8, "enable_metrics": True, "expert_parallel": True, "expert_parallel_size": 8}),
    "the balance in SGLang's log until 0.5.17": (
        "sglang serve M --enable-metrics --enable-expert-distribution-metrics --enable-hicache",
        {"enable_metrics": True, "balancedness_report": "server_log", "kv_offload": True}),
    "the balance as a metric until 0.5.17": (
        "export SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC=true\n"
        "sglang serve M --enable-metrics --enable-expert-distribution-metrics",
        {"enable_metrics": True, "balancedness_report": "prometheus"}),
    "SGLang without metrics": ("python3 -m sglang.launch_server --model-path M", {"enable_metrics": False}),
    "a unit of systemd": (
        "[Service]\nEnvironment=\"VLLM_USE_RUST_FRONTEND=1\"\nExecStart=/opt/bin/vllm serve M \\\n  -tp 8",
        {"tensor_parallel": 8, "rust_frontend": True}),
    "a command kept in a variable": ('CMD="vllm serve M -tp 8"\neval $CMD', {"tensor_parallel": 8}),
    "a command for another host": ("ssh node-1 'cd /m && nohup vllm serve M -tp 8 &'", {"tensor_parallel": 8}),
    "a Dockerfile": ('FROM vllm/vllm-openai:v0.20.2\nCMD ["vllm", "serve", "M", "-tp", "8"]', {"tensor_parallel": 8}),
    "a terminal's prompts": ("$ vllm serve M \\\n>   -tp 8", {"tensor_parallel": 8}),
    "a number with underscores": ("vllm serve M --max-num-seqs 1_024", {"max_num_seqs": 1024}),
    "SGLang with a file of settings": ("python3 -m sglang.launch_server --config s.yaml", {}),
    "the last of a flag given twice": ("vllm serve M -tp 4 --tensor-parallel-size 8", {"tensor_parallel": 8}),
}  # fmt: skip


@pytest.mark.parametrize("spelling", COMMANDS)
def test_a_spelling_is_read(spelling: str) -> None:
    text, args = COMMANDS[spelling]
    launch = read(text)
    assert launch.args == args
    loads(starter(launch)[0])


COMPOSE = """
services:
  k3:
    image: vllm/vllm-openai:v0.20.2
    command: >
      --model M
      -tp 8
    ports: ["18000:8000"]
    environment: [VLLM_USE_RUST_FRONTEND=1]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: k3}
spec:
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.33.0
      env: [{name: PORT, value: "8080"}]
      command: [/bin/sh, -c, "vllm serve M --port $(PORT)"]
"""
PLACES: dict[str, tuple[str, str]] = {
    "a published port": ("docker run -p 18000:8000 vllm/vllm-openai --model M", "127.0.0.1:18000"),
    "a published port of one address": ("docker run -p10.0.0.3:9000:8000/tcp vllm/vllm-openai --model M",
                                        "10.0.0.3:9000"),
    "the network of the host": ("docker run --network host vllm/vllm-openai --model M --port 8101", "127.0.0.1:8101"),
    "a published port that is not the engine's": (
        "docker run --publish=18000:8000 vllm/vllm-openai --model M --port 8101", "127.0.0.1:8101"),
    "the address that it is bound to": ("vllm serve M --host 10.1.2.3", "10.1.2.3:8000"),
    "every address": ("sglang serve M --host 0.0.0.0", "127.0.0.1:30000"),
    "Compose": (COMPOSE, "127.0.0.1:18000"),
    "a pod without labels": (POD, "127.0.0.1:8080"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_the_target_is_where_prometheus_reaches_the_engine(place: str) -> None:
    text, target = PLACES[place]
    [service] = loads(starter(read(text))[0]).config.services
    assert service.targets == [target]


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: k3, namespace: llm}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: k3}}
    spec:
      containers:
        - name: engine
          image: lmsysorg/sglang:v0.5.10
          args: [python3, -m, sglang.launch_server, --model-path, moonshotai/Kimi-K3, --tp, "16", --enable-metrics]
          ports: [{containerPort: 30001, hostPort: 30001}]
          resources: {limits: {nvidia.com/gpu: 4}}
"""


def test_a_manifest_tells_how_its_pods_are_found_and_what_a_node_has() -> None:
    [service] = loads(starter(read(DEPLOYMENT))[0]).config.services
    assert service.discovery is not None
    assert service.discovery.kubernetes is not None
    found = service.discovery.kubernetes.model_dump(exclude_none=True)
    workload = {"kind": "Deployment", "name": "k3", "container": "engine", "size": 1}
    assert found == {"namespace": "llm", "selector": {"app": "k3"}, "port": 30001, "workload": workload}
    assert service.accelerators is not None
    assert (service.accelerators.per_node, service.replicas.expected) == (4, 3)
    assert (service.engine.name, service.engine.version) == ("sglang", "0.5.10")


def test_aliases_in_a_manifest_are_looked_at_once() -> None:
    layers = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    bomb = "\n".join(["apiVersion: v1", *layers, "metadata: {name: *a19, labels: {x: *a19}}", POD.replace(
        "apiVersion: v1", "").replace("metadata: {name: k3}", "")])  # fmt: skip
    assert read(bomb).model == "M"


YAML = st.recursive(
    st.none() | st.integers(-1, 99999) | st.sampled_from(["vllm/vllm-openai:v1", "vllm serve M", "8000:1", "A=b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "services", "apiVersion", "spec", "template", "containers", "image", "command", "args", "ports", "environment",
        "env", "metadata", "labels", "name", "value", "kind", "replicas", "resources", "limits", "entrypoint",
        "ServerConfig", "BackendConfig", "ModelDeployConfig", "ModelConfig", "worldSize", "containerPort",
    ]), inner, max_size=5), max_leaves=25)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(YAML, st.sampled_from(["apiVersion", "services", "ServerConfig", "BackendConfig"]), st.booleans())
def test_whatever_stands_in_a_manifest_gives_a_configuration_that_loads_or_a_message(
    value: Any, key: str, as_json: bool
) -> None:
    document = {key: value, "spec": value}
    launch: Launch | None = None
    with contextlib.suppress(ConfigError):
        launch = read(json.dumps(document) if as_json else yaml.safe_dump(document))
    if launch is not None:
        loads(starter(launch)[0])


def test_mindies_config_file_is_read_instead_of_a_command() -> None:
    text = """{"ServerConfig": {"ipAddress": "10.0.0.7", "metricsPort": 1099, "httpsEnabled": true},
        "BackendConfig": {"npuDeviceIds": [[0, 1, 2, 3]], "ScheduleConfig": {"maxBatchSize": 64},
        "ModelDeployConfig": {"maxSeqLen": 32768, "ModelConfig": [
            {"modelName": "k3", "modelWeightPath": "/m/Kimi-K3", "worldSize": 16, "dp": 2, "tp": -1}]}}}"""
    [service] = loads(starter(read(text))[0]).config.services
    assert (service.engine.name, service.targets, service.scheme) == ("mindie", ["10.0.0.7:1099"], "https")
    assert service.engine.args.model_dump(exclude_defaults=True) == {
        "tensor_parallel": 8, "data_parallel": 2, "max_num_seqs": 64, "max_model_len": 32768}  # fmt: skip


IMAGES: dict[str, tuple[str, str | None, str]] = {
    "docker run --gpus all -p 8000:8000 -v /data/vllm:/m vllm/vllm-openai:v0.33.0 --model M": ("vllm", "0.33.0", "M"),
    "docker run --rm vllm/vllm-openai:latest --model M": ("vllm", None, "M"),
    "podman run -it lmsysorg/sglang:v0.5.3-cu126 python3 -m sglang.launch_server --model-path M":
        ("sglang", "0.5.3", "M"),
    "docker run --rm quay.io/ascend/vllm-ascend:v0.11.0rc1 vllm serve M": ("vllm-ascend", "0.11.0", "M"),
    "docker run --entrypoint vllm registry:5000/team/vllm-openai serve M": ("vllm", None, "M"),
    "docker run nvcr.io/nvidia/vllm:25.09-py3 vllm serve M": ("vllm", None, "M"),
    "docker run --rm -itd --net=host sglang:v0.5.10 python3 -m sglang.launch_server --model M":
        ("sglang", "0.5.10", "M"),
    "docker run -it -p 8000:8000 quay.io/ascend/vllm-ascend:v0.11.0 bash\nvllm serve M": ("vllm-ascend", "0.11.0", "M"),
    "uv run --with vllm==0.12.0 vllm serve M": ("vllm", "0.12.0", "M"),
    "docker run -e MIES_SERVICE_MONITOR_MODE=1 hub/mindie:2.0.0 mindie_service start --model_path M":
        ("mindie", "2.0.0", "M"),
}  # fmt: skip


@pytest.mark.parametrize("command", IMAGES)
def test_a_container_tells_the_engine_and_its_image_the_version(command: str) -> None:
    launch = read(command)
    assert (launch.engine, launch.version, launch.model) == IMAGES[command]


def test_of_several_commands_the_first_that_starts_an_engine_is_read() -> None:
    launch = read("vllm bench serve --model X\nvllm serve A -tp 2\nvllm serve B -tp 4")
    assert (launch.model, launch.args) == ("A", {"tensor_parallel": 2})


def test_the_role_comes_from_the_transfer_of_kv_blocks() -> None:
    def role(kind: str) -> str:
        transfer = f'{{"kv_connector": "NixlConnector", "kv_role": "{kind}"}}'
        return read(f"vllm serve M --kv-transfer-config '{transfer}'").role

    assert [role("kv_producer"), role("kv_consumer"), role("kv_both")] == ["prefill", "decode", "unified"]
    assert read("sglang serve M --disaggregation-mode decode").role == "decode"


def test_ascend_is_known_by_its_environment_and_its_configuration() -> None:
    assert read("ASCEND_RT_VISIBLE_DEVICES=0 vllm serve M").engine == "vllm-ascend"
    dynamic = read("""vllm serve M --additional-config '{"eplb_config": {"dynamic_eplb": true}}'""")
    assert (dynamic.engine, dynamic.args["eplb"]) == ("vllm-ascend", True)


NOTES = {
    "vllm serve M -tp $TP": "-tp $TP is set where the command does not show it; it was left out",
    "vllm serve M --port 99999": "--port 99999 is no port; it was left out",
    "vllm serve M --config k3.yaml": "the settings in k3.yaml were not read: add them to engine.args",
    "vllm serve M --eplb-config '{bad'": "this value is no JSON object and was left out: {bad",
    "vllm serve ${MODEL}": "the model ${MODEL} is set where the command does not show it: fill in model.served_name",
    "vllm serve M --port $((8000 + RANK))":
        "--port $((8000_+_RANK)) is set where the command does not show it; it was left out",
    "vllm serve M --headless -dp 2":
        "this command is of a node that serves no API and no metrics: target the node that does",
    "sglang serve M --enable-metrics":
        "the engine listens on 127.0.0.1 alone, out of Prometheus' reach: add --host 0.0.0.0",
    "docker run vllm/vllm-openai --model M": "port 8000 of the container is not published: add -p 8000:8000",
    "vllm serve A --port 1 & vllm serve B --port 2":
        "1 more engines are started there and were not read: give each command to init by itself",
    "vllm serve M --disable-log-stats": "vLLM serves no metrics of its own with --disable-log-stats: remove it",
    "vllm serve M --mem-fraction-static 0.8":
        "--mem-fraction-static is no flag of vllm; it was carried over as gpu_memory_utilization",
    "sglang serve M": "SGLang serves no metrics without --enable-metrics: add it",
}


@pytest.mark.parametrize("command", NOTES)
def test_what_cannot_be_taken_as_it_stands_is_noted(command: str) -> None:
    assert NOTES[command] in [note.en for note in read(command).notes]


REFUSED = {
    "": "launch.sh: holds no launch command of vLLM, SGLang or MindIE: ''",
    "ls -l": "launch.sh: holds no launch command of vLLM, SGLang or MindIE: 'ls -l'",
    "vllm bench serve": "launch.sh: holds no launch command of vLLM, SGLang or MindIE: 'vllm bench serve'",
    "apiVersion: v1\nkind: Pod\nspec: {containers: {{ .Values.x }}}":
        "launch.sh: is a template of Helm: render it first: helm template",
    '{"ServerConfig": {},': "launch.sh:1: is no JSON: Expecting property name enclosed in double quotes",
    "vllm serve 'M": "launch.sh: cannot be read: No closing quotation: check the quotes",
    "vllm serve M -tp": "launch.sh: -tp: needs a value",
    "vllm serve M -tp eight": "launch.sh: -tp: is no number: 'eight'",
    "vllm serve M -tp 0": "launch.sh: -tp: must be at least 1: '0'",
    "vllm serve M -tp 8.5": "launch.sh: -tp: is no number: '8.5'",
    "vllm serve M -tp 99999999999999999999": "launch.sh: -tp: is no number: '99999999999999999999'",
    "vllm serve M --gpu-memory-utilization 9": "launch.sh: --gpu-memory-utilization: is no share between 0 and 1: '9'",
    "vllm serve " + "x" * MAX_COMMAND: "launch.sh: is longer than 64 KiB",
}  # fmt: skip


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: command[:40])
def test_what_is_no_launch_command_is_refused_with_the_reason(command: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(command, "launch.sh")
    assert str(caught.value).startswith(REFUSED[command])


WORDS = st.sampled_from([
    "vllm", "serve", "docker", "run", "vllm/vllm-openai:v0.33", "-tp", "--max-num-seqs", "8", "=", "'", '"', "\\\n",
    ";", "&&", "$X", "${Y:-3}", "--eplb-config", '{"a":', "}", "--port", "70000", "-e", "A=b", "#", "mindie_service",
    "start", "sglang.launch_server", "--served-model-name", "\x00", "²", "名",
]) | st.text(max_size=6)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(WORDS, max_size=14).map(" ".join))
def test_whatever_stands_in_a_script_gives_a_configuration_that_loads_or_a_message(text: str) -> None:
    launch: Launch | None = None
    with contextlib.suppress(ConfigError):
        launch = read(text)
    if launch is not None:
        loads(starter(launch)[0])
