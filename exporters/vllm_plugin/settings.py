"""What the environment says: where to publish, how often and in what detail."""

from __future__ import annotations

import os
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import cast

from k3observe.exporters.vllm_plugin.fileformat import INSTANCE, Detail

DIRECTORY = "K3OBSERVE_EXPERTS_DIR"
STEPS = "K3OBSERVE_EXPERTS_STEPS"
DETAIL = "K3OBSERVE_EXPERTS_DETAIL"
ENGINE_INSTANCE = "K3OBSERVE_EXPERTS_INSTANCE"


@dataclass(frozen=True, slots=True)
class Settings:
    """``every`` is the number of engine steps between two publications; ``detail`` what a column of a file is."""

    directory: str
    every: int = 100
    detail: Detail = "expert"
    instance: str = "engine"


def from_environment(environment: MutableMapping[str, str] | None = None) -> Settings | None:
    """Return the settings, or None where the plugin is off. Raises ValueError naming the variable that is wrong.

    The first process of an engine gives it a random name and leaves it in the environment, which its workers
    inherit: that is how files of one engine are told from those of another without asking the other ranks.
    """
    env = os.environ if environment is None else environment
    directory = env.get(DIRECTORY)
    if not directory:
        return None
    every, detail = env.get(STEPS, "100"), env.get(DETAIL, "expert")
    if not (every.isascii() and every.isdigit() and 1 <= int(every[:9]) <= 1_000_000 and len(every) < 9):
        raise ValueError(f"{STEPS}: must be a number of engine steps from 1 to 1000000, is {every[:40]!r}")
    if detail not in ("rank", "expert"):
        raise ValueError(f"{DETAIL}: must be rank or expert, is {detail[:40]!r}")
    instance = env.setdefault(ENGINE_INSTANCE, secrets.token_hex(4))
    if not INSTANCE.fullmatch(instance):
        raise ValueError(
            f"{ENGINE_INSTANCE}: must be 1 to 32 letters, digits, - or _, is {instance[:40]!r}")
    return Settings(directory, int(every), cast("Detail", detail), instance)
