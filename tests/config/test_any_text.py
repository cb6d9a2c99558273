"""No text, however wrong, gives anything but a configuration or a list of problems."""

from __future__ import annotations

import contextlib
import string
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import ConfigError, Loaded, loads
from k3observe.config.model import Config
from k3observe.config.source import load_documents
from k3observe.config.values import Duration
from k3observe.plan import plan
from k3observe.rules import load as load_rules

CATALOGUE, PACK = load_catalogue(), load_rules()
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["5m", "0.9", "90%", "vllm", "10.0.0.1:8000", "http://h:1/x", "0.33", "kimi-k3", "/metrics"])
)  # fmt: skip


def fields(section: Any) -> list[str]:
    return sorted({field.alias or name for name, field in section.model_fields.items()})


def anything_at(names: list[str]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(names) | st.text(string.ascii_letters, max_size=8)
    return st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
                        max_leaves=12)  # fmt: skip


def read(text: str) -> Loaded | list[str]:
    try:
        loaded = loads(text, "k3.yaml")
        plan(loaded, CATALOGUE, PACK)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return loaded


def survives(text: str) -> None:
    """Either it is a configuration or each problem is one line that begins with the place."""
    found = read(text)
    if isinstance(found, list):
        assert found
        assert all(line.startswith("k3.yaml") and "\n" not in line for line in found)


@QUICK
@given(st.text(max_size=400))
def test_any_text_is_a_configuration_or_a_list_of_problems(text: str) -> None:
    survives(text)


@QUICK
@given(st.text("{}[]:,&*!|>-?#%@`'\" \t\nab01.~<=_\\x", max_size=60))
def test_any_punctuation_of_yaml_is_survived_by_both_readers(text: str) -> None:
    survives(text)
    with contextlib.suppress(ConfigError):
        load_documents(text, "theirs")


SECTIONS = sorted({name for section in (Config, *Config.__subclasses__()) for name in fields(section)})


@QUICK
@given(st.dictionaries(st.sampled_from(SECTIONS), anything_at([*SECTIONS, "name", "args", "threshold", "url", "for"]),
                       max_size=8))  # fmt: skip
def test_any_value_in_any_field_is_survived(data: dict[str, Any]) -> None:
    survives(yaml.safe_dump({"version": 1, "stack": "s", **data}))


@QUICK
@given(st.sampled_from(fields(Config.model_fields["services"].annotation.__args__[0])),  # type: ignore[union-attr]
       anything_at(["kubernetes", "dns", "selector", "port", "names", "args", "kind", "collect", "p99", "threshold"]))
def test_any_value_in_any_field_of_a_service_is_survived(field: str, value: Any) -> None:
    service = {"name": "a", "engine": {"name": "vllm"}, "targets": ["a:1"], field: value}
    survives(yaml.safe_dump({"version": 1, "stack": "s", "services": [service]}))


@QUICK
@given(st.integers(min_value=0, max_value=3650 * 86_400_000))
def test_a_duration_is_spelt_and_read_back_alike(milliseconds: int) -> None:
    spelt = Duration.of(milliseconds / 1000)
    assert round(Duration.parse(spelt).seconds * 1000) == milliseconds
