"""The audit of a server: the events that are recorded. The door and the engine's admissions report them.

If the audit is off, no line is made.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from tailrace.errors import ServerFull
from tailrace_server.access.audit_trail import (
    AuditFile,
    AuditLine,
    AuditStarted,
    AuditStopped,
    AuditTrail,
    Authenticated,
    KeysChanged,
    OperatorAction,
    PolicyLoaded,
    Refused,
    moment,
)
from tailrace_server.access.identity import Identity
from tailrace_server.access.settings import AuditSettings
from tailrace_server.grants.principal import IN_PROCESS, Peer
from tailrace_server.resources.faults import ServerFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.errors import TailraceError
    from tailrace_server.access.audit_trail import TrailStatistics
    from tailrace_server.grants.principal import Principal

_STDERR: Final = "stderr"
_LOOK_EVERY_S: Final = 1.0
_CLOSE_S: Final = 2.0
_AGAIN_AFTER_S: Final = 60.0
"""Seconds in which a repeated authentication is not recorded again: a client that polls authenticates each
time."""
_PROOFS_MAX: Final = 10_000
"""Most authentications that are remembered for this."""

_log = structlog.get_logger("tailrace.audit")
_Line = TypeVar("_Line", bound=AuditLine)


class Audit:
    """The audit of one server process."""

    def __init__(
        self,
        settings: AuditSettings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the file and record the start; the caller must ``close`` the audit.

        Raises:
            CannotStart: The file cannot be opened.
        """
        self._settings = settings = settings or AuditSettings()
        self._monotonic = monotonic
        self._proofs: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        """Monotonic time of the last record of each authentication (principal, address, transport), oldest
        first."""
        self._trail: AuditTrail | None = None
        self.has_given_up = False
        """True if the audit has stopped the server, because it could not be written."""
        if settings.audit is not None:
            path = None if str(settings.audit) == _STDERR else settings.audit
            self._trail = AuditTrail(AuditFile(path), settings.audit_queue_bytes, monotonic)
            self._trail.put(
                AuditStarted(time=moment(), pid=os.getpid(), version=version("tailrace"))
            )

    @property
    def is_on(self) -> bool:
        """True if events are recorded."""
        return self._trail is not None

    def authenticated(self, caller: Principal, peer: Peer) -> None:
        """Record an authentication; at most once a minute for the same principal, address and transport."""
        if self._trail is None:
            return
        # The number of clients is not bounded, so only the newest authentications are remembered. A dropped one
        # may be recorded again within the minute.
        proof, now = (caller.name, address_of(peer), peer.transport), self._monotonic()
        told = self._proofs.get(proof)
        if told is not None and now - told < _AGAIN_AFTER_S:
            return
        self._proofs[proof] = now
        self._proofs.move_to_end(proof)
        if len(self._proofs) > _PROOFS_MAX:
            self._proofs.popitem(last=False)
        self.put(Authenticated, caller, peer, expires_at=caller.expires_at)

    def refused(
        self, error: TailraceError, peer: Peer, caller: Principal | None = None, catalog: str = ""
    ) -> None:
        """Record a refusal; ``caller`` is None if no identity was proven."""
        self.put(Refused, caller, peer, catalog, code=error.code, reason=str(error))

    def policy_loaded(self, file: str, grants: int, fingerprint: str) -> None:
        """Record that a policy is in force now; ``fingerprint`` is the SHA-256 of its file."""
        self.put(PolicyLoaded, file=file, grants=grants, fingerprint=fingerprint)

    def keys_changed(self, source: str, added: Sequence[str], removed: Sequence[str]) -> None:
        """Record the names of the keys of a file or issuer that are newly accepted, or no longer accepted."""
        self.put(KeysChanged, source=source, added=tuple(added), removed=tuple(removed))

    def operator_action(
        self, caller: Principal, peer: Peer, action: str, subject: str, reason: str, catalog: str
    ) -> None:
        """Record an action of an operator."""
        self.put(
            OperatorAction, caller, peer, catalog, action=action, subject=subject, reason=reason
        )

    def put(
        self,
        kind: type[_Line],
        caller: Principal | None = None,
        peer: Peer = IN_PROCESS,
        catalog: str = "",
        **fields: Any,
    ) -> bool:
        """Record an event; return False if that failed and the audit is required (`audit_required`)."""
        if self._trail is None:
            return True
        name, proven_by, issuer = _who(caller)
        line = kind(
            time=moment(),
            principal=name,
            kind=proven_by,
            issuer=issuer,
            address=address_of(peer),
            transport="" if peer is IN_PROCESS else peer.transport,
            catalog=catalog,
            **fields,
        )
        return self._trail.put(line) or not self._settings.audit_required

    def refuse_unrecorded(self) -> None:
        """Refuse a use while a required audit cannot be written.

        Raises:
            ServerFull: The audit is required and cannot be written now.
        """
        if self._trail is None or not self._settings.audit_required:
            return
        found = self._trail.statistics()
        if found.standing_still_s:
            raise unrecorded(found.reason)

    def statistics(self) -> TrailStatistics | None:
        """Return the current figures; None if the audit is off."""
        return None if self._trail is None else self._trail.statistics()

    def faults(self) -> tuple[ServerFault, ...]:
        """Return the fault that the audit cannot be written, if it cannot."""
        found = self.statistics()
        if found is None or not found.standing_still_s:
            return ()
        consequence = (
            "new subscriptions and reads are rejected, and the server stops after "
            f"{self._settings.audit_patience_s:g} s (audit_required)"
            if self._settings.audit_required
            else "lines are queued for a while (audit_queue_bytes), then lost"
        )
        reason = f"{found.reason}; {consequence}: free space, or give the server write permission"
        return (ServerFault("audit_not_written", str(self._settings.audit), reason),)

    async def run(self, stop: Callable[[], None]) -> None:
        """Call ``look`` every second until cancelled."""
        while True:
            self.look(stop)
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self, stop: Callable[[], None]) -> None:
        """Call ``stop``, once, if a required audit could not be written for `audit_patience_s`."""
        found, patience_s = self.statistics(), self._settings.audit_patience_s
        if self.has_given_up or not self._settings.audit_required or found is None:
            return
        if found.standing_still_s >= patience_s:
            _log.critical(
                "server stops because its audit cannot be written",
                reason=found.reason,
                audit_patience_s=patience_s,
            )
            self.has_given_up = True
            stop()

    def close(self) -> None:
        """Write the queued lines, for two seconds at most, and close the file."""
        if self._trail is not None:
            self._trail.put(AuditStopped(time=moment()))
            self._trail.close(_CLOSE_S)


def unrecorded(reason: str) -> ServerFull:
    """Return the error of a use that is refused because it cannot be recorded."""
    return ServerFull(
        f"the audit cannot be written ({reason}), and this server requires an audit of each read "
        "(audit_required); try again later"
    )


def _who(caller: Principal | None) -> tuple[str, str, str]:
    """Return the name, kind and issuer of a caller; empty texts for None."""
    if caller is None:
        return "", "", ""
    identity = getattr(caller, "identity", None)
    if isinstance(identity, Identity):
        return identity.name, identity.kind.value, identity.issuer
    return caller.name, "anonymous", ""


def address_of(peer: Peer) -> str:
    """Return the address without its port. An IPv6 address without brackets has no port."""
    host, _, port = peer.address.rpartition(":")
    has_port = port.isdigit() and bool(host) and (":" not in host or host.endswith("]"))
    return host.strip("[]") if has_port else peer.address
