"""Our YAML is PyYAML's, byte for byte, but for the end marker after a text that ends in empty lines."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from k3observe.render.text import to_yaml

TRICKY = ("a\n\nb\n", " lead\n x\n", "a\n", "\n", "x: y", "- a", "yes", "1.0", "0x1", "#", "a #b", "~", "\ta\nb", "队")
texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(TRICKY)
keys = texts.filter(lambda text: text != "" and text.isprintable())
leaves = texts | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
data = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=15)


class Reference(yaml.CSafeDumper):
    """PyYAML as it is, with texts of several lines as blocks and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def string(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Reference.add_representer(str, string)


@given(st.lists(data, min_size=1) | st.dictionaries(keys, data, min_size=1))
def test_a_document_is_spelled_as_pyyaml_spells_it(document: Any) -> None:
    expected = yaml.dump(document, Dumper=Reference, sort_keys=False, allow_unicode=True, width=100_000)
    assert to_yaml(document) == expected.removesuffix("...\n")
