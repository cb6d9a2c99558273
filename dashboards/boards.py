"""The dashboards that ship, in the order of their links."""

from __future__ import annotations

from k3observe.dashboards import overview
from k3observe.dashboards.model import Board

BOARDS: tuple[Board, ...] = (overview.BOARD,)
