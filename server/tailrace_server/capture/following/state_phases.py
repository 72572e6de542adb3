"""The states that subscriptions of one catalog are being sent, and the version that the next one is of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from tailrace.position import Position

if TYPE_CHECKING:
    from tailrace_server.wal.state.view import LogView

_JOINED_S: Final = 1.0
"""For so long others begin with the version of a state that is being sent, so that they share its blocks."""


class _Phase(Protocol):
    version: int


class StatePhases:
    """The phases of one catalog that are under way. Lives on the event loop."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: WeakSet[_Phase] = WeakSet()
        self._version, self._since = 0, float("-inf")

    def version(self, view: LogView, at_least: int) -> int:
        """Return the version of a state that begins now: the newest, or that of others which began just now.

        Either gives the same in the end, as every change behind it follows. Those of one version share the
        scan. It is not below ``at_least``, which is published.
        """
        now = asyncio.get_running_loop().time()
        shared = any(each.version == self._version for each in self._open)
        kept = Position(self._version + 1) >= view.oldest and self._version >= at_least
        if not shared or not kept or now - self._since > _JOINED_S:
            self._version, self._since = view.published, now
        return self._version

    def add(self, phase: _Phase) -> None:
        """Note one that begins."""
        self._open.add(phase)

    def remove(self, phase: _Phase) -> None:
        """Forget one that is over."""
        self._open.discard(phase)
