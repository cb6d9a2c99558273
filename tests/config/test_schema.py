"""The JSON schema accepts what the loader accepts, and refuses what an editor should underline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from k3observe.config import ConfigError, loads

FULL = (Path(__file__).parent / "full.yaml").read_text()


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "k3observe", "schema"], capture_output=True, check=True)
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def refused(schema: dict[str, Any], text: str) -> bool:
    return not jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(text))


def test_the_schema_is_one(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


def test_the_schema_accepts_the_full_example(schema: dict[str, Any]) -> None:
    loads(FULL)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(FULL))) == []


@pytest.mark.parametrize(("right", "wrong"), [
    ("language:", "lanugage:"),
    ("max_num_seqs", "max_num_sequences"),
    ("{threshold: 0.95}", "{treshold: 0.95}"),
    ("role: unified", "role: united"),
    ("for: 5m", "for: 5 minutes"),
    ("namespace: llm", "namspace: llm"),
])  # fmt: skip
def test_the_schema_and_the_loader_refuse_the_same_mistakes(schema: dict[str, Any], right: str, wrong: str) -> None:
    assert right in FULL
    text = FULL.replace(right, wrong)
    assert refused(schema, text)
    with pytest.raises(ConfigError):
        loads(text)


def test_every_field_of_the_schema_has_a_meaning_and_a_type(schema: dict[str, Any]) -> None:
    for name, section in {**schema["$defs"], "Config": schema}.items():
        for field, value in section["properties"].items():
            assert value.get("description"), f"{name}.{field}"
            assert {"type", "$ref", "anyOf", "enum", "const"} & value.keys(), f"{name}.{field}"


def test_a_generated_configuration_names_no_file_that_is_not_there() -> None:
    from k3observe.config.starter import EXAMPLE, starter

    assert "$schema" not in starter(EXAMPLE)[0]
    assert "k3observe schema --help" in starter(EXAMPLE)[0]
