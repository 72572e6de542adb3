"""The door: it turns credentials into a principal, or an error that says what is wrong with them.

::

    face ──Credentials──▶ Door.admit ──▶ the authenticators, one by one ──▶ Identity ──▶ principal
                              │                                                              │
                              └── no authenticator configured: anonymous                     ▼
                                                                          engine.subscribe(principal, …)

A principal is checked repeatedly while its stream is open: its token expires, its key may be removed, and the
policy may change. A principal may read what the policy in force grants its identity; without a policy,
everything.
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
    "the request has no credential, and this server requires one: "
    "send `authorization: Bearer TOKEN`"
)
_GRANTS_KEPT: Final = 1_000
"""Most catalogs whose grants a principal caches."""
_UNFIT_TOLD_MAX: Final = 1_000
"""Most warnings that are logged about claims. Claims are arbitrary, so their number needs a bound."""
_TOKEN_CHARACTERS_MAX: Final = 16 << 10
"""Characters of the longest token that is accepted."""

_log = structlog.get_logger("tailrace.access")


class Authenticator(Protocol):
    """One way to authenticate callers: by JWT, API key or certificate."""

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return the identity that the credentials prove; None if they are of another kind.

        Raises:
            Unauthenticated: The credentials are of this kind and wrong; the error never contains them.
            TokenExpired: The credentials are valid but for their expiry.
        """

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the identity if that needs no check of a signature; else None, also for wrong credentials.

        Raises:
            TokenExpired: The credentials are known and have expired.
        """

    def accepts(self, identity: Identity) -> bool:
        """Return True if the key that proves an identity is still accepted."""


class HasCaller(Protocol):
    """A connection that may have an authenticated caller."""

    @property
    def principal(self) -> Principal:
        """The caller of the connection.

        Raises:
            TailraceError: The connection has no caller yet, or the caller is no longer accepted.
        """

    def refusal(self) -> TailraceError | None:
        """Return the error if the caller is no longer accepted; None if it is, or without a caller."""


class Identified:
    """The principal of a verified identity; a newer token of the same caller may renew it."""

    def __init__(
        self, identity: Identity, authenticator: Authenticator, door: Door | None = None
    ) -> None:
        """Make the principal of an identity; ``door`` knows the policy, and None is a door without one."""
        door = door or Door()
        self.identity = identity
        self._authenticator = authenticator
        self._door = door
        self._granted: dict[str, Grant | None] = {}
        """The grants by catalog, as of ``_revision``."""
        self._revision = door.revision
        self._has_left = False

    @property
    def name(self) -> str:
        """The name of the identity, as text for people."""
        return str(self.identity)

    @property
    def expires_at(self) -> float | None:
        """Time at which the token expires, in seconds since 1970; None: it does not expire."""
        return self.identity.expires_at

    def grant(self, catalog: str) -> Grant | None:
        """Return the grant of a catalog by the policy, or None. Without a policy, all of it may be read."""
        policy = self._door.policy
        if policy is None:
            return READ_ALL
        # The cache is valid for one revision of the policy. Its bound drops all grants at once, which is rare.
        if self._revision != self._door.revision or len(self._granted) > _GRANTS_KEPT:
            self._granted, self._revision = {}, self._door.revision
        if catalog not in self._granted:
            self._granted[catalog] = policy.grant(self.identity, catalog)
            self._door.tell_unfit_claims(policy, self.identity, catalog)
        return self._granted[catalog]

    def refusal(self) -> TailraceError | None:
        """Return the error with which the caller's streams must end; None while they may continue."""
        expires_at = self.identity.expires_at
        if self._has_left:
            return Unauthenticated("the session was ended by the page that began it")
        if expires_at is not None and time.time() >= expires_at:
            return TokenExpired("the token has expired")
        if not self._authenticator.accepts(self.identity):
            return Unauthenticated(f"the key of {self.name} is no longer accepted")
        return None

    def leave(self) -> None:
        """Make ``refusal`` return an error from now on, so that all streams of the principal end."""
        self._has_left = True

    def renew(self, other: Principal) -> None:
        """Take over the newer identity of another principal, which must be the same caller.

        Raises:
            NotPermitted: The other principal is another caller.
        """
        if not isinstance(other, Identified) or not self.identity.is_same(other.identity):
            raise NotPermitted(
                "the new token belongs to another principal than the token with which the stream was "
                "opened"
            )
        # The claims of the newer token may grant less. Then the streams must be checked, which checks those of
        # all callers. Most renewals change no grant, so compare the grants first.
        before = dict(self._granted)
        is_stale = self._revision != self._door.revision or len(before) > _GRANTS_KEPT
        self.identity = other.identity
        self._authenticator = other._authenticator
        self._granted = {}
        if is_stale or any(self.grant(catalog) != held for catalog, held in before.items()):
            self._door.changed()


@dataclass(frozen=True, slots=True)
class AnonymousByPolicy:
    """The caller without credentials, on a server whose policy grants something to such callers."""

    door: Door

    @property
    def name(self) -> str:
        """The name of all anonymous callers."""
        return "anonymous"

    @property
    def expires_at(self) -> float | None:
        """None: there is no credential that could expire."""
        return None

    def grant(self, catalog: str) -> Grant | None:
        """Return the grant of a catalog to anonymous callers; None if there is none."""
        policy = self.door.policy
        return None if policy is None else policy.grant(None, catalog)

    def refusal(self) -> TailraceError | None:
        """Return None: streams of anonymous callers end only by their grants."""
        return None


class Door:
    """The authentication of callers, shared by all faces of a server."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator] = (),
        policy: PolicyFile | None = None,
        audit: Audit | None = None,
        quotas: Quotas | None = None,
        faults: Callable[[], tuple[ServerFault, ...]] = tuple,
    ) -> None:
        """Make a door whose admissions and refusals are recorded in the audit.

        Args:
            authenticators: Tried in this order; if there are none, every caller is anonymous.
            policy: The policy file; None: every caller may read everything.
            audit: The audit; None: nothing is recorded.
            quotas: The quotas; None: the defaults.
            faults: Returns the faults of keys.
        """
        self._faults_of_keys = faults
        self._unfit_told: set[tuple[str, str]] = set()
        """The warnings that were logged: name of the grant, and reason."""
        self.quotas = quotas or Quotas()
        self._authenticators = tuple(authenticators)
        self.tickets = Tickets()
        self.sockets: dict[HasCaller, Callable[[TailraceError], None]] = {}
        """Open WebSockets, each with the function that ends it when its caller is no longer accepted."""
        self._policy = policy
        self._audit = audit or Audit()
        self.anonymous: Principal = ANONYMOUS if policy is None else AnonymousByPolicy(self)
        """The principal of callers without credentials, if such callers are admitted."""
        self.revision = 0
        """A number that changes whenever grants of some caller may have changed."""

    @property
    def policy(self) -> Policy | None:
        """The policy in force; None without a policy."""
        return None if self._policy is None else self._policy.policy

    def changed(self) -> None:
        """Note that the grants of some caller may have changed."""
        self.revision += 1

    def tell_unfit_claims(self, policy: Policy, identity: Identity, catalog: str) -> None:
        """Log the rules that apply to an identity but grant nothing because a claim is unusable; each once."""
        for told in policy.unfit_claims(identity, catalog):
            if told not in self._unfit_told and len(self._unfit_told) < _UNFIT_TOLD_MAX:
                self._unfit_told.add(told)
                grant, reason = told
                _log.warning(
                    "grant gives nothing", grant=grant, reason=reason, principal=str(identity)
                )

    def faults(self) -> tuple[ServerFault, ...]:
        """Return the faults of the policy file and of keys."""
        found = self._faults_of_keys()
        if self._policy is None or self._policy.error is None:
            return found
        reason = f"{self._policy.error}; the previous policy remains in force: fix the file"
        return (ServerFault("policy", str(self._policy.file), reason), *found)

    @property
    def is_open(self) -> bool:
        """True if no identity is required, so that every caller is admitted."""
        return not self._authenticators

    async def admit(self, credentials: Credentials) -> Principal:
        """Return the principal that the credentials prove.

        Raises:
            Unauthenticated: The credentials are missing or wrong.
            TokenExpired: The credentials have expired.
            QuotaExceeded: Too many wrong credentials came from the same address.
        """
        if self.is_open:
            return self.anonymous
        peer = Peer(credentials.transport, credentials.address)
        with self._recording_refusals(peer, counted=credentials.token is not None):
            # First without checks of signatures, which is cheap: most requests repeat a known credential.
            found = self._recognised(credentials) or await self._identified(credentials)
        self._audit.authenticated(found, peer)
        return found

    def redeem(self, credentials: Credentials, find: Callable[[], Principal]) -> Principal:
        """Return the principal that ``find`` looks up by a ticket or session, and record the admission.

        Raises:
            Unauthenticated, TokenExpired: The ticket or session is unknown, or its caller is no longer
                accepted.
        """
        peer = Peer(credentials.transport, credentials.address)
        # Do not count it as a guess: a browser sends an expired session again and again.
        with self._recording_refusals(peer, counted=False):
            found = find()
        self._audit.authenticated(found, peer)
        return found

    def close_refused(self) -> None:
        """Close the WebSockets of callers that are no longer accepted."""
        # A copy, because closing a socket may remove it from the dict.
        for socket, close in tuple(self.sockets.items()):
            if (refusal := socket.refusal()) is not None:
                close(refusal)

    @contextmanager
    def _recording_refusals(self, peer: Peer, *, counted: bool) -> Iterator[None]:
        """Check a credential in the body: record a refusal, and if ``counted``, count it for the address."""
        try:
            yield
        except TailraceError as error:
            if counted and isinstance(error, Unauthenticated):
                self.quotas.failed(peer.address)
            self._audit.refused(error, peer)
            raise

    def _recognised(self, credentials: Credentials) -> Principal | None:
        """Return the principal if no signature must be checked for that; else None."""
        if len(credentials.token or "") > _TOKEN_CHARACTERS_MAX:
            raise Unauthenticated(f"the token has more than {_TOKEN_CHARACTERS_MAX} characters")
        for each in self._authenticators:
            identity = each.recognise(credentials)
            if identity is not None:
                return Identified(identity, each, self)
        return None

    async def _identified(self, credentials: Credentials) -> Principal:
        # A caller without credentials is anonymous if the policy grants such callers anything.
        if credentials.token is None:
            if self.policy is not None and self.policy.grants_anything(None):
                return self.anonymous
            raise Unauthenticated(MISSING)
        # Check the count of failures before any signature: else a caller who guesses could use up the CPU.
        self.quotas.refuse_after_failures(credentials.address)
        for each in self._authenticators:
            identity = await each.identify(credentials)
            if identity is not None:
                return Identified(identity, each, self)
        raise Unauthenticated("the token is neither a JWT of a known issuer nor an API key")
