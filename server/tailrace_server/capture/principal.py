"""Principals: every face passes one to the engine with each request.

The door (`access.door`) makes it of what a request proves about its sender. The engine asks it what its sender
may have, at its one door, and no face decides that for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tailrace_server.capture.grant import EVERYTHING

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace_server.capture.grant import Grant


class Principal(Protocol):
    """A caller of the engine. It answers by what is known and granted now, not when it was made."""

    @property
    def name(self) -> str:
        """The name, for people to read; never a credential."""

    @property
    def expires_at(self) -> float | None:
        """When what it has proven ends, in seconds since 1970; None: never."""

    def grant(self, catalog: str) -> Grant | None:
        """Return what the caller may have of a catalog by the policy in force now.

        None: nothing; it may not know whether the catalog exists.
        """

    def refusal(self) -> TailraceError | None:
        """Return why its streams end: it has expired, or its key was removed; None while it is valid."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Anybody who can reach a server that asks for no identity, and has no policy. May have everything."""

    @property
    def name(self) -> str:
        """Say so."""
        return "anonymous"

    @property
    def expires_at(self) -> float | None:
        """Never."""
        return None

    def grant(self, catalog: str) -> Grant | None:
        """Return all of the catalog."""
        return EVERYTHING

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class Nobody:
    """A caller without a credential, if the server requires one: it sees public facts, and reads no data."""

    @property
    def name(self) -> str:
        """Say so."""
        return "nobody"

    @property
    def expires_at(self) -> float | None:
        """Never."""
        return None

    def grant(self, catalog: str) -> Grant | None:
        """Return None."""
        return None

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


ANONYMOUS: Final = Anonymous()
"""The caller of every face of an open server, and the server itself where it measures or logs."""

NOBODY: Final = Nobody()
"""The caller of what is public, where the server asks for identities."""
