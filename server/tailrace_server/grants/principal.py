"""Callers of the engine: principals with their grants, and the peers that their connections come from.

The door (``access.door``) authenticates a request and creates its principal. Every face passes the principal to
the engine. Only the engine checks the principal's grants; a face never does.
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
    """A caller of the engine. Its methods answer by the policy in force now, not by an earlier one."""

    @property
    def name(self) -> str:
        """The name, for people to read; never a credential."""

    @property
    def expires_at(self) -> float | None:
        """When its credential expires, in seconds since 1970; None: never."""

    def grant(self, catalog: str) -> Grant | None:
        """Return the caller's rights to a catalog by the policy in force now.

        None: no rights; the caller may not know whether the catalog exists.
        """

    def refusal(self) -> TailraceError | None:
        """Return the error that ends the caller's streams, if its credential has expired or was removed.

        None: the credential is valid.
        """


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Every caller of a server without authentication and policy; may do everything."""

    @property
    def name(self) -> str:
        """The constant name."""
        return "anonymous"

    @property
    def expires_at(self) -> float | None:
        """Always None: no expiry."""
        return None

    def grant(self, catalog: str) -> Grant | None:
        """Return the grant of the whole catalog."""
        return EVERYTHING

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class Nobody:
    """A caller without a credential on a server that requires one: it may read public facts, but no data."""

    @property
    def name(self) -> str:
        """The constant name."""
        return "nobody"

    @property
    def expires_at(self) -> float | None:
        """Always None: no expiry."""
        return None

    def grant(self, catalog: str) -> Grant | None:
        """Return None: no catalog is granted."""
        return None

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


ANONYMOUS: Final = Anonymous()
"""The caller in every request to a server without authentication, and the server itself when it measures."""

NOBODY: Final = Nobody()
"""The caller in requests for public facts, on a server with authentication."""


def knows(caller: Principal, catalog: str) -> bool:
    """Return True if a caller may know that a catalog exists."""
    return caller.grant(catalog) is not None


def may(caller: Principal, action: Action, catalog: str) -> bool:
    """Return True if a caller is granted an action for any part of a catalog."""
    grant = caller.grant(catalog)
    return grant is not None and grant.may(action)


def allowances_of(caller: Principal, catalog: str, action: Action | None) -> tuple[Allowance, ...]:
    """Return a caller's allowances for an action in a catalog; None: for any action.

    Raises:
        NotPermitted: There is no such allowance.
    """
    grant = caller.grant(catalog)
    found = () if grant is None else grant.allowances if action is None else grant.of(action)
    if not found:
        raise NotPermitted(f"{action or 'reading'} is not granted for this catalog")
    return found


@dataclass(frozen=True, slots=True)
class Peer:
    """The subscriber's end of a connection."""

    transport: str
    """The protocol, such as ``grpc`` or ``rest_websocket``; a label of metrics, so there are few values."""
    address: str = ""
    """Host and port; empty if there is none, as for a Unix socket."""
    client: str = ""
    """The program's name: the user agent as it was sent; empty if there is none."""
    principal: str = ""
    """Name of the authenticated principal; the engine sets it when a subscription begins."""


IN_PROCESS: Final = Peer("process")
"""The peer of a subscription from the engine's own process."""
