"""Log lines for what the HTTP listener refuses by a name that the peer gives: each name once."""

from __future__ import annotations

from typing import Final

import structlog

_log = structlog.get_logger("tailrace.http")

_NAMES_MAX: Final = 100
"""Most names of one kind that are logged. Anybody can make up more, and the metrics count them all."""
_SHOWN: Final = 200


class RefusalLog:
    """Tells the names of one kind, for instance hosts or origins."""

    def __init__(self, kind: str) -> None:
        """Begin without a name."""
        self._kind = kind
        self._told: set[str] = set()

    def tell(self, name: str, **cure: str) -> None:
        """Log that a name was refused, once; ``cure`` is the remedy."""
        shown = name[:_SHOWN]
        if shown in self._told or len(self._told) > _NAMES_MAX:
            return
        self._told.add(shown)
        _log.warning(f"{self._kind} refused", **{self._kind: shown}, **cure)
        if len(self._told) > _NAMES_MAX:
            _log.warning(f"further refusals by {self._kind} are counted only", told=_NAMES_MAX + 1)
