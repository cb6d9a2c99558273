"""The dashboards that ship, in the order of their links."""

from __future__ import annotations

from k3observe.dashboards import accelerators, experts, kv_cache, monitoring, overview, service
from k3observe.dashboards.model import Board, Panel

BOARDS: tuple[Board, ...] = (
    overview.BOARD,
    service.BOARD,
    kv_cache.BOARD,
    experts.BOARD,
    accelerators.BOARD,
    monitoring.BOARD,
)


def home(alert: str) -> tuple[Board, Panel] | None:
    """The panel that the notification of an alert opens."""
    for board in BOARDS:
        for row in board.rows:
            for panel in row.panels:
                if alert in panel.alerts:
                    return board, panel
    return None
