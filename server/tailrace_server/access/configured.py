"""The door of a server, made from settings: it reloads keys and policy, and ends streams without a grant.

Each change of the keys and of the policy in force is recorded in the audit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.errors import NotPermitted, TailraceError, TokenExpired, Unauthenticated
from tailrace_server.access.api_keys import ApiKeys
from tailrace_server.access.door import Door
from tailrace_server.access.identity import Identity, IdentityKind
from tailrace_server.access.policy_file import PolicyFile
from tailrace_server.errors import ConfigError
from tailrace_server.grants.principal import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace_server.access.audit import Audit
    from tailrace_server.access.door import Authenticator
    from tailrace_server.access.identity import Credentials
    from tailrace_server.access.key_sets import Issuer, IssuerKeys
    from tailrace_server.access.quotas import Quotas
    from tailrace_server.access.settings import AccessSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.resources.faults import ServerFault


_LOOK_EVERY_S: Final = 0.5
"""Seconds between two checks of the files and of the streams."""
_STREAMS_AT_ONCE: Final = 2_000
"""Streams that are checked before other tasks run; this takes about a millisecond."""
_log = structlog.get_logger("tailrace.access")


class Access:
    """The door of a server, and the task that reloads its keys and policy."""

    def __init__(
        self,
        settings: AccessSettings,
        client_ca: Path | None = None,
        audit: Audit | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Read the files that settings name.

        Args:
            settings: The callers that are let in.
            client_ca: The authority of clients' certificates; None: clients show none.
            audit: The audit that records changes of keys and policy; None = no audit.
            quotas: The quotas; None = the defaults.

        Raises:
            ConfigError: A file or a setting cannot be used.
        """
        self._refresh_s = settings.jwks_refresh_s
        self._files: list[_WatchedFile] = []
        self._keys: list[IssuerKeys] = []
        self._rules = RecordedRules(audit)
        authenticators: list[Authenticator] = []
        # First: a key whose name has dots may look like a JWT, and no JWT looks like a key.
        if settings.api_keys is not None:
            seen = _state_of(settings.api_keys)
            api_keys = ApiKeys(settings.api_keys)
            self._files.append(_WatchedFile(api_keys, seen))
            self._rules.keys[str(api_keys.file)] = api_keys.fingerprints
            authenticators.append(api_keys)
        if settings.identities is not None:
            # The readers of tokens take memory, and time to load: a server without tokens does without.
            from tailrace_server.access.jwt_tokens import JwtTokens
            from tailrace_server.access.key_sets import IssuerKeys, read_issuers

            issuers: dict[str, tuple[Issuer, IssuerKeys]] = {}
            for issuer in read_issuers(settings.identities):
                seen = _state_of(issuer.keys) if isinstance(issuer.keys, Path) else None
                keys = IssuerKeys(issuer)
                issuers[issuer.issuer] = issuer, keys
                if keys.file is not None:
                    self._files.append(_WatchedFile(keys, seen))
            self._keys = [keys for _, keys in issuers.values()]
            self._rules.keys |= {keys.source: keys.fingerprints for keys in self._keys}
            authenticators.append(JwtTokens(issuers))
        if settings.certificate_identities:
            if client_ca is None:
                raise ConfigError(
                    "certificate_identities: needs tls_client_ca, as otherwise no client sends a "
                    "certificate"
                )
            authenticators.append(CertificateNames())
        policy = None
        if settings.policy is not None:
            # The state is noted before the file is read: a change in between then causes a reload.
            seen = _state_of(settings.policy)
            self._rules.policy = policy = PolicyFile(settings.policy)
            self._files.append(_WatchedFile(policy, seen))
        self.door = Door(authenticators, policy, audit, quotas, self._faults)

    def key_ages(self) -> dict[str, float]:
        """Return the seconds since the last successful fetch of keys, by issuer."""
        return {keys.source: keys.age_s for keys in self._keys if keys.file is None}

    def _faults(self) -> tuple[ServerFault, ...]:
        return tuple(filter(None, (keys.fault() for keys in self._keys)))

    async def run(self, engine: Engine) -> None:
        """Keep keys and policy fresh, and end streams, until cancelled; returns at once if there are none."""
        if self.door.is_open and not self._files:
            return
        revision = self.door.revision
        async with asyncio.TaskGroup() as tasks:
            for keys in self._keys:
                if keys.file is None:
                    tasks.create_task(self._refresh(keys), name="keys of an issuer")
            while True:
                for file in self._files:
                    if await file.look():
                        self.door.changed()
                self._rules.record()
                await _end_refused(engine)
                self.door.close_refused()
                # Streams that are open now may still have the old grants. The revision is noted before the
                # check, so a change during the check causes another check.
                if revision != self.door.revision:
                    revision = self.door.revision
                    await engine.end_what_is_not_granted()
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _refresh(self, keys: IssuerKeys) -> None:
        while True:
            await keys.refresh(self._refresh_s)
            await asyncio.sleep(_LOOK_EVERY_S)


class _WatchedFile:
    """A file of keys or of the policy; reloaded once it has changed and has then been stable for one interval.

    A half-written file may grant too much: for instance a grant that still lacks the line that hides a column.
    """

    def __init__(
        self, keys: ApiKeys | IssuerKeys | PolicyFile, seen: tuple[int, ...] | None
    ) -> None:
        """Watch a file; ``seen`` is the state of the file just before it was read."""
        assert keys.file is not None
        self._keys = keys
        self._what = "grants" if isinstance(keys, PolicyFile) else "keys"
        self._file = keys.file
        self._taken = self._before = seen

    async def look(self) -> bool:
        """Reload the file if it has changed; return True if it was reloaded. An error in the file is logged."""
        # Reload only when two checks in a row have seen the same new state: the file is then complete.
        now = await asyncio.to_thread(_state_of, self._file)
        stood_still, self._before = now == self._before, now
        if now == self._taken or not stood_still:
            return False
        self._taken = now
        try:
            await asyncio.to_thread(self._keys.reload)
        except ConfigError as error:
            _log.error(f"{self._what} not replaced", error=str(error))
            return False
        _log.info(f"{self._what} read again", file=str(self._file))
        return True


def _state_of(file: Path) -> tuple[int, ...] | None:
    """Return the modification time, size and inode of a file; None if the file is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


async def _end_refused(engine: Engine) -> None:
    """End each stream whose caller's token has expired or whose key was removed, with its resume cursor."""
    # There may be 100,000 streams, so other tasks run after each part of them.
    for place, (_, subscription) in enumerate(engine.subscriptions(ANONYMOUS)):
        refusal = subscription.options.caller.refusal()
        if refusal is not None:
            end_refused(subscription, refusal)
        if place % _STREAMS_AT_ONCE == _STREAMS_AT_ONCE - 1:
            await asyncio.sleep(0)


def end_refused(subscription: Subscription, refusal: TailraceError) -> None:
    """End a subscription whose caller is no longer accepted, with its resume cursor."""
    cursor = str(subscription.resume_cursor())
    if isinstance(refusal, TokenExpired | Unauthenticated | NotPermitted):
        refusal = type(refusal)(f"{refusal}; resume after {cursor}", cursor)
    subscription.end(refusal)


class CertificateNames:
    """Authenticates a caller without a token by the first name in its certificate.

    The listener has already verified the certificate.
    """

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return the identity of a certificate, as ``recognise``; its claim ``names`` has all names."""
        return self.recognise(credentials)

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the identity of a certificate; None without a certificate, and if there is a token."""
        if credentials.token is not None or not credentials.certificate_names:
            return None
        names = credentials.certificate_names
        return Identity(IdentityKind.CERTIFICATE, "", names[0], {"names": list(names)})

    def accepts(self, _: Identity) -> bool:
        """Return True: a certificate is checked when its connection begins."""
        return True


class RecordedRules:
    """The keys and the policy of one server, as the audit recorded them last."""

    def __init__(self, audit: Audit | None) -> None:
        """Begin with nothing recorded; without an audit, nothing is recorded later either."""
        self._audit = audit
        self.keys: dict[str, Callable[[], Mapping[str, str]]] = {}
        """File or issuer → a function that returns the fingerprints of its keys by name."""
        self.policy: PolicyFile | None = None
        self._recorded: dict[str, Mapping[str, str]] = {}
        self._policy_recorded = ""

    def record(self) -> None:
        """Record what changed since the last record; the first call records everything."""
        if self._audit is None:
            return
        for source, fingerprints in self.keys.items():
            before, now = self._recorded.get(source, {}), fingerprints()
            if now != before:
                self._audit.keys_changed(source, _new(before, now), _new(now, before))
                self._recorded[source] = now
        policy = self.policy
        if policy is not None and policy.fingerprint != self._policy_recorded:
            self._policy_recorded = policy.fingerprint
            self._audit.policy_loaded(
                str(policy.file), len(policy.policy.rules), policy.fingerprint
            )


def _new(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name, each in now.items() if before.get(name) != each)
