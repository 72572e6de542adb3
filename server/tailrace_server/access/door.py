"""The door: from credentials to a principal, or an error that says what was wrong with them.

::

    face ──Credentials──▶ Door.admit ──▶ the authenticators, one by one ──▶ Identity ──▶ principal
                              │                                                              │
                              └── no authenticator configured: anonymous                     ▼
                                                                          engine.subscribe(principal, …)

A principal is asked again and again while its stream is open: it expires, its key may be removed, and the
policy may change. It may have what the policy in force grants its identity; without one, all to read.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tailrace.errors import NotPermitted, TailraceError, TokenExpired, Unauthenticated
from tailrace_server.access.audit import Audit
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.tickets import Tickets
from tailrace_server.grants.grant import READ_ALL
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tailrace_server.resources.faults import ServerFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace_server.access.identity import Credentials, Identity
    from tailrace_server.access.policy import Policy
    from tailrace_server.access.policy_file import PolicyFile
    from tailrace_server.grants.grant import Grant
    from tailrace_server.grants.principal import Principal

MISSING: Final = (
    "no credential came, and this server asks for one: send `authorization: Bearer TOKEN`"
)
_GRANTS_KEPT: Final = 1_000
"""Catalogs whose grants a principal remembers."""
_UNFIT_TOLD_MAX: Final = 1_000
"""Most grants and reasons that are logged: tokens may have anything in them."""
_TOKEN_CHARACTERS_MAX: Final = 16 << 10
"""Of the longest token that is looked at."""

_log = structlog.get_logger("tailrace.access")


class Authenticator(Protocol):
    """One way to prove who somebody is."""

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return who it is; None where the credentials are of another kind.

        Raises:
            Unauthenticated: They are of this kind, and prove nothing; says why, never what came.
            TokenExpired: They would, and their time is over.
        """

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return who it is where no signature has to be checked for that; None of all others, wrong ones too.

        Raises:
            TokenExpired: As ``identify``.
        """

    def accepts(self, identity: Identity) -> bool:
        """Return whether an identity that it has found would be found again: its key is still there."""


class HasCaller(Protocol):
    """A connection that has a caller, or had one."""

    @property
    def principal(self) -> Principal:
        """Its caller.

        Raises:
            TailraceError: It has none, or none any more.
        """

    def refusal(self) -> TailraceError | None:
        """Return why its caller is no longer let in; None while he is, or if there was none yet."""


class Identified:
    """The principal of a verified identity, which a newer token of the same sender may renew."""

    def __init__(
        self, identity: Identity, authenticator: Authenticator, door: Door | None = None
    ) -> None:
        """Keep who it is, who says so, and the door that knows the policy; None: one without."""
        door = door or Door()
        self.identity = identity
        self._authenticator = authenticator
        self._door = door
        self._granted: dict[str, Grant | None] = {}
        """By catalog, as of ``_revision``."""
        self._revision = door.revision
        self._has_left = False

    @property
    def name(self) -> str:
        """The name, for people to read."""
        return str(self.identity)

    @property
    def expires_at(self) -> float | None:
        """When its token expires, in seconds since 1970; None: never."""
        return self.identity.expires_at

    def grant(self, catalog: str) -> Grant | None:
        """Return what the policy grants it; without one, all of the catalog, to read."""
        policy = self._door.policy
        if policy is None:
            return READ_ALL
        if self._revision != self._door.revision or len(self._granted) > _GRANTS_KEPT:
            self._granted, self._revision = {}, self._door.revision
        if catalog not in self._granted:
            self._granted[catalog] = policy.grant(self.identity, catalog)
            self._door.tell_unfit_claims(policy, self.identity, catalog)
        return self._granted[catalog]

    def refusal(self) -> TailraceError | None:
        """Return why its streams must end; None while they may continue."""
        expires_at = self.identity.expires_at
        if self._has_left:
            return Unauthenticated("the session was ended by who had begun it")
        if expires_at is not None and time.time() >= expires_at:
            return TokenExpired("the token has expired")
        if not self._authenticator.accepts(self.identity):
            return Unauthenticated(f"the key of {self.name} is no longer accepted")
        return None

    def leave(self) -> None:
        """End all of its streams."""
        self._has_left = True

    def renew(self, other: Principal) -> None:
        """Go on with what another principal has proven, if that is the same somebody.

        Raises:
            NotPermitted: It is somebody else.
        """
        if not isinstance(other, Identified) or not self.identity.is_same(other.identity):
            raise NotPermitted(
                "the new token is of somebody else than the one that the stream was opened with"
            )
        # Its claims may grant less. Then its streams have to be looked at, and with them all others: that is
        # not done for each of the many renewals that change nothing.
        before = dict(self._granted)
        is_stale = self._revision != self._door.revision or len(before) > _GRANTS_KEPT
        self.identity = other.identity
        self._authenticator = other._authenticator
        self._granted = {}
        if is_stale or any(self.grant(catalog) != held for catalog, held in before.items()):
            self._door.changed()


@dataclass(frozen=True, slots=True)
class AnonymousByPolicy:
    """The caller without proof, under a policy that says what it may do."""

    door: Door

    @property
    def name(self) -> str:
        """Say so."""
        return "anonymous"

    @property
    def expires_at(self) -> float | None:
        """Never."""
        return None

    def grant(self, catalog: str) -> Grant | None:
        """Return what the policy grants everybody."""
        policy = self.door.policy
        return None if policy is None else policy.grant(None, catalog)

    def refusal(self) -> TailraceError | None:
        """Return None."""
        return None


class Door:
    """Lets callers in. One for all faces of a server."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator] = (),
        policy: PolicyFile | None = None,
        audit: Audit | None = None,
        quotas: Quotas | None = None,
        faults: Callable[[], tuple[ServerFault, ...]] = tuple,
    ) -> None:
        """Ask these, in this order; none = everybody is anonymous. Each admission and refusal is recorded.

        Without a policy it is as ``Identified.grant`` has it. ``faults`` returns what is wrong with keys.
        """
        self._faults_of_keys = faults
        self._unfit_told: set[tuple[str, str]] = set()
        """Grants by name, each with a reason, that were logged."""
        self.quotas = quotas or Quotas()
        self._authenticators = tuple(authenticators)
        self.tickets = Tickets()
        self.sockets: dict[HasCaller, Callable[[TailraceError], None]] = {}
        """The functions that end open WebSockets whose callers are no longer let in."""
        self._policy = policy
        self._audit = audit or Audit()
        self.anonymous: Principal = ANONYMOUS if policy is None else AnonymousByPolicy(self)
        """The caller without proof, if such callers are let in."""
        self.revision = 0
        """Changes whenever somebody may be granted something else than before."""

    @property
    def policy(self) -> Policy | None:
        """The policy in force; None: there is none."""
        return None if self._policy is None else self._policy.policy

    def changed(self) -> None:
        """Note that somebody may be granted something else."""
        self.revision += 1

    def tell_unfit_claims(self, policy: Policy, identity: Identity, catalog: str) -> None:
        """Log the rules that speak of an identity and give it nothing, as a claim is no value; each once."""
        for told in policy.unfit_claims(identity, catalog):
            if told not in self._unfit_told and len(self._unfit_told) < _UNFIT_TOLD_MAX:
                self._unfit_told.add(told)
                grant, reason = told
                _log.warning(
                    "grant gives nothing", grant=grant, reason=reason, principal=str(identity)
                )

    def faults(self) -> tuple[ServerFault, ...]:
        """Return what is wrong with the policy file, and with keys."""
        found = self._faults_of_keys()
        if self._policy is None or self._policy.error is None:
            return found
        reason = f"{self._policy.error}; the policy before is in force: mend the file"
        return (ServerFault("policy", str(self._policy.file), reason), *found)

    @property
    def is_open(self) -> bool:
        """True if no identity is asked for, so that everybody who reaches the server is let in."""
        return not self._authenticators

    async def admit(self, credentials: Credentials) -> Principal:
        """Return whom the credentials prove.

        Raises:
            Unauthenticated: Nobody: there are none, or they are wrong.
            TokenExpired: They were right once.
        """
        if self.is_open:
            return self.anonymous
        peer = Peer(credentials.transport, credentials.address)
        with self._recording_refusals(peer, counted=credentials.token is not None):
            found = self._recognised(credentials) or await self._identified(credentials)
        self._audit.authenticated(found, peer)
        return found

    def redeem(self, credentials: Credentials, find: Callable[[], Principal]) -> Principal:
        """Return who is found by a ticket or a session, which were given to who had proven it before.

        Raises:
            Unauthenticated, TokenExpired: Nobody is, or nobody any more.
        """
        peer = Peer(credentials.transport, credentials.address)
        # One that is over is no guess: browsers show it again and again.
        with self._recording_refusals(peer, counted=False):
            found = find()
        self._audit.authenticated(found, peer)
        return found

    def close_refused(self) -> None:
        """Tell the sockets of callers that are no longer let in."""
        for socket, close in tuple(self.sockets.items()):
            if (refusal := socket.refusal()) is not None:
                close(refusal)

    @contextmanager
    def _recording_refusals(self, peer: Peer, *, counted: bool) -> Iterator[None]:
        """Look at a credential in here: a refusal is recorded, a wrong one ``counted`` for its address."""
        try:
            yield
        except TailraceError as error:
            if counted and isinstance(error, Unauthenticated):
                self.quotas.failed(peer.address)
            self._audit.refused(error, peer)
            raise

    def _recognised(self, credentials: Credentials) -> Principal | None:
        """Return whose credential it is, where that costs next to nothing to tell."""
        if len(credentials.token or "") > _TOKEN_CHARACTERS_MAX:
            raise Unauthenticated(f"the token has more than {_TOKEN_CHARACTERS_MAX} characters")
        for each in self._authenticators:
            identity = each.recognise(credentials)
            if identity is not None:
                return Identified(identity, each, self)
        return None

    async def _identified(self, credentials: Credentials) -> Principal:
        if credentials.token is None:
            if self.policy is not None and self.policy.grants_anything(None):
                return self.anonymous
            raise Unauthenticated(MISSING)
        # Before a signature is checked: that is what whoever guesses would have us do.
        self.quotas.refuse_after_failures(credentials.address)
        for each in self._authenticators:
            identity = await each.identify(credentials)
            if identity is not None:
                return Identified(identity, each, self)
        raise Unauthenticated("the token is neither a JWT of a known issuer nor an API key")
