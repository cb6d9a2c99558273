"""What is known of models, so that a configuration need not say it.

Kimi K3: 93 layers of which 92 are MoE, 896 routed experts, 16 per token, 2 shared; engines take up to an hour to load
it (vLLM's recipe waits 3600 s). Kimi K2: 61 layers of which the first is dense, 384 routed experts, 8 per token, 1
shared.
"""

from __future__ import annotations

from typing import NamedTuple

from k3observe.config.values import Duration


class Preset(NamedTuple):
    """Shape of a model: layers that route, routed ``experts`` in each, ``top_k`` of them for a token."""

    moe_layers: int | None = None
    experts: int | None = None
    top_k: int | None = None
    startup_grace: Duration = Duration("10m")
    recurrent: bool = False
    """Layers with recurrent state beside attention: vLLM caches their prefixes by default from 0.26 on only."""


PRESETS = {
    "kimi-k3": Preset(92, 896, 16, Duration("1h"), recurrent=True),
    "kimi-k2": Preset(60, 384, 8, Duration("30m")),
}
