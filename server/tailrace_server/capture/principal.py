"""Who asks the engine: a principal, which every face passes with everything that it asks for.

A face makes it of what a request proves about its sender. The engine asks it what its sender may read, at its
one door, and no face decides that for itself. There are no credentials yet, so everybody is ``ANONYMOUS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


class Principal(Protocol):
    """A caller of the engine."""

    def may_read(self, catalog: str) -> bool:
        """Return whether the caller may know that a catalog exists, and read all of it."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Anybody who can reach the server. May read everything."""

    def may_read(self, catalog: str) -> bool:
        """Return True."""
        return True


ANONYMOUS: Final = Anonymous()
"""The caller of every face, and the server itself where it measures or logs."""
