"""Who asks the engine: a principal, which every face passes with everything that it asks for.

The door (`access.door`) makes it of what a request proves about its sender. The engine asks it what its sender
may read, at its one door, and no face decides that for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from tailrace.errors import TailraceError


class Principal(Protocol):
    """A caller of the engine. It answers by what is known and granted now, not when it was made."""

    @property
    def name(self) -> str:
        """Who it is, for people to read; never a credential."""

    @property
    def expires_at(self) -> float | None:
        """When what it has proven ends, in seconds since 1970; None: never."""

    def may_read(self, catalog: str) -> bool:
        """Return whether the caller may know that a catalog exists, and read all of it."""

    def refusal(self) -> TailraceError | None:
        """Return why nothing of it may go on: it has expired, or its key was removed; None while it may."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Anybody who can reach a server that asks for no identity. May read everything."""

    @property
    def name(self) -> str:
        """Say so."""
        return "anonymous"

    @property
    def expires_at(self) -> float | None:
        """Never."""
        return None

    def may_read(self, catalog: str) -> bool:
        """Return True."""
        return True

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class Nobody:
    """Who has shown no credential where the server asks for one: sees what is public, and may read nothing."""

    @property
    def name(self) -> str:
        """Say so."""
        return "nobody"

    @property
    def expires_at(self) -> float | None:
        """Never."""
        return None

    def may_read(self, catalog: str) -> bool:
        """Return False."""
        return False

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


ANONYMOUS: Final = Anonymous()
"""The caller of every face of an open server, and the server itself where it measures or logs."""

NOBODY: Final = Nobody()
"""The caller of what is public, where the server asks for identities."""
