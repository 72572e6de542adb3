"""Callers: principals, what they may do, and the other end of their connections.

The door (`access.door`) makes a principal of what a request proves about its sender. Every face passes it to
the engine, which asks it what it grants; no face decides that itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.errors import NotPermitted
from tailrace_server.grants.grant import EVERYTHING

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace_server.grants.grant import Action, Allowance, Grant


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


def knows(caller: Principal, catalog: str) -> bool:
    """Return True if a caller may know that a catalog exists."""
    return caller.grant(catalog) is not None


def may(caller: Principal, action: Action, catalog: str) -> bool:
    """Return True if a caller is granted an action for anything of a catalog."""
    grant = caller.grant(catalog)
    return grant is not None and grant.may(action)


def allowances_of(caller: Principal, catalog: str, action: Action | None) -> tuple[Allowance, ...]:
    """Return the allowances that a caller has for a catalog, or only those for an action.

    Raises:
        NotPermitted: There are none.
    """
    grant = caller.grant(catalog)
    found = () if grant is None else grant.allowances if action is None else grant.of(action)
    if not found:
        raise NotPermitted(f"{action or 'reading'} is not granted for this catalog")
    return found


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a subscription."""

    transport: str
    """How it is served, one of few names: ``grpc``, ``rest_websocket`` … It is a label of metrics."""
    address: str = ""
    """Host and port; empty where there is none, as behind a socket with a path."""
    client: str = ""
    """The program's name: the user agent as it was sent; empty if there is none."""
    principal: str = ""
    """The authenticated principal; the engine notes it at a subscribe."""


IN_PROCESS: Final = Peer("process")
"""A caller of the engine in its own process."""
