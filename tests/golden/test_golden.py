"""The files that people read first are what they were; a change is seen in a diff before it is shipped."""

from __future__ import annotations

import pytest

from tools import goldens


@pytest.mark.parametrize("name", goldens.names())
def test_a_golden_bundle_is_what_the_command_renders(name: str) -> None:
    assert goldens.rendered(name) == goldens.stored(name), "if it was meant: python -m tools.goldens"
