"""The issuers whose JWTs are accepted, and their public keys, which are cached while an issuer is unreachable.

The file of issuers::

    [[issuer]]
    issuer = "https://login.example/realms/shop"    # `iss` of its tokens, exactly
    audience = "tailrace"                           # required in `aud`; a list: any of these
    algorithms = ["RS256"]                          # the accepted ones, from ALGORITHMS
    keys = "https://login.example/jwks.json"        # or a file, JWKS or PEM; absent: OIDC discovery
    leeway_s = 10                                   # tolerance for differing clocks

Keys come from one of two places::

    file       read at the start, and again when it has changed
    address    fetched in a thread, every `jwks_refresh_s`, and when a token names an unknown key, but then
               at most every 30 s; bounded in time and size; redirects to plain text or a file are refused

If the keys cannot be fetched again, the earlier keys stay in force, so an unreachable issuer locks no caller
out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
import tomllib
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey, import_key

from tailrace_server.access.policy_file import texts_of
from tailrace_server.errors import ConfigError
from tailrace_server.resources.faults import ServerFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from http.client import HTTPResponse
    from typing import IO
    from urllib.request import OpenerDirector


ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""The algorithms that may be accepted, all with public keys; never shared secrets, never ``none``."""
_MEMBERS: Final = frozenset({"issuer", "audience", "algorithms", "keys", "leeway_s"})
_LEEWAY_MAX_S: Final = 300
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


_Connection = TypeVar("_Connection", HTTPConnection, HTTPSConnection)
PublicKey = RSAKey | ECKey | OKPKey

_TIMEOUT_S: Final = 5.0
_BYTES_MAX: Final = 256 << 10
_KEYS_MAX: Final = 200
_AGAIN_S: Final = 30.0
"""Shortest time between two fetches that unknown keys cause, in seconds."""
_KINDS: Final = ("RSA", "EC", "OKP")
"""Types of keys that can sign; a JWKS may have keys of other types."""
_DISCOVERY: Final = "/.well-known/openid-configuration"
_log = structlog.get_logger("tailrace.access")


@dataclass(frozen=True, slots=True)
class Issuer:
    """The settings of one issuer of tokens."""

    issuer: str
    audiences: tuple[str, ...]
    """The accepted audiences; a token's ``aud`` must have at least one of them."""
    algorithms: tuple[str, ...]
    keys: Path | str | None
    """A file, or an address; None: the issuer's discovery document has the address."""
    leeway_s: float


def read_issuers(file: Path) -> tuple[Issuer, ...]:
    """Return the issuers in a file.

    Raises:
        ConfigError: The file cannot be read or is not valid; the error names file and place.
    """
    try:
        value = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"identities: {file}: {(error.strerror or str(error)).lower()}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"identities: {file}: not TOML: {error}") from error
    tables = value.pop("issuer", [])
    if value:
        raise ConfigError(f"identities: {file}: unknown: {', '.join(sorted(value))}")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"identities: {file}: it has no [[issuer]]")
    found = tuple(
        _issuer(table, f"identities: {file}, issuer {place}", file.parent)
        for place, table in enumerate(tables, 1)
    )
    if len({each.issuer for each in found}) < len(found):
        raise ConfigError(f"identities: {file}: two issuers are equal; remove one")
    return found


def _issuer(table: Any, where: str, folder: Path) -> Issuer:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table")
    for name in table:
        if name not in _MEMBERS:
            raise ConfigError(f"{where}: unknown: {name}; it has {', '.join(sorted(_MEMBERS))}")
    name = table.get("issuer")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: issuer must be a text, `iss` of its tokens")
    audiences = texts_of(table.get("audience"), f"{where}: audience")
    algorithms = texts_of(table.get("algorithms"), f"{where}: algorithms")
    for each in algorithms:
        if each not in ALGORITHMS:
            raise ConfigError(
                f"{where}: algorithms: {each!r} is not one of {', '.join(ALGORITHMS)}"
            )
    leeway_s = table.get("leeway_s", 10)
    if isinstance(leeway_s, bool) or not isinstance(leeway_s, int | float):
        raise ConfigError(f"{where}: leeway_s must be a number of seconds")
    if not 0 <= leeway_s <= _LEEWAY_MAX_S:
        raise ConfigError(f"{where}: leeway_s must be from 0 to {_LEEWAY_MAX_S}")
    return Issuer(
        name, audiences, algorithms, _keys(table.get("keys"), name, where, folder), leeway_s
    )


def _keys(value: object, issuer: str, where: str, folder: Path) -> Path | str | None:
    if value is None:
        require_address(issuer, f"{where}: an issuer without keys must be an address for discovery")
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: keys must be an address or a file")
    if "://" in value:
        require_address(value, f"{where}: keys")
        return value
    return folder / value


def require_address(text: str, where: str) -> None:
    """Require a text to be an https address, or an http address of this machine.

    Raises:
        ConfigError: The text is no such address.
    """
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigError(f"{where}: not an address: {text[:100]!r}") from None
    if parts.username or parts.password:
        raise ConfigError(f"{where}: the address must not contain a password")
    if host and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        return
    raise ConfigError(
        f"{where}: must be an https:// address (http:// on loopback only), not {text[:100]!r}"
    )


class KeysUnavailable(Exception):
    """The keys of an issuer cannot be fetched or read; the text has the reason."""


class IssuerKeys:
    """The keys of one issuer. All methods run on the event loop, except for the fetch itself."""

    def __init__(self, issuer: Issuer) -> None:
        """Read the keys if they are in a file; keys at an address are fetched when they are first needed.

        Raises:
            ConfigError: The file has no key, or cannot be read.
        """
        self._issuer = issuer
        self._keys: Mapping[str, PublicKey] = {}
        """The keys by thumbprint."""
        self._fetching = asyncio.Lock()
        self._tried_at = float("-inf")
        """Monotonic time of the last fetch."""
        self._had_at = time.monotonic()
        """Monotonic time of the last successful fetch; before the first one, the time of the start."""
        self.error = ""
        """Why the last fetch failed; empty if it succeeded."""
        if isinstance(issuer.keys, Path):
            self.reload()

    @property
    def file(self) -> Path | None:
        """The file of the keys; None if the keys come from an address."""
        return self._issuer.keys if isinstance(self._issuer.keys, Path) else None

    def reload(self) -> None:
        """Read the file again; on an error the keys stay as they are.

        Raises:
            ConfigError: The file cannot be read, or has no key.
        """
        file = self.file
        assert file is not None
        try:
            data = file.read_bytes()[: _BYTES_MAX + 1]
            self._keys = _parse(data)
        except OSError as error:
            raise ConfigError(f"keys: {file}: {(error.strerror or str(error)).lower()}") from error
        except KeysUnavailable as error:
            raise ConfigError(f"keys: {file}: {error}") from error

    def fingerprints(self) -> Mapping[str, str]:
        """Return the thumbprint of each key by key id; a key without an id is named by its thumbprint."""
        return {key.kid or thumbprint: thumbprint for thumbprint, key in self._keys.items()}

    @property
    def source(self) -> str:
        """The issuer of the keys."""
        return self._issuer.issuer

    def has(self, thumbprint: str) -> bool:
        """Return True if the issuer still has a key."""
        return thumbprint in self._keys

    async def candidates(self, kid: str | None) -> list[tuple[str, PublicKey]]:
        """Return the keys that may have signed a token with a key id, each with its thumbprint.

        A token without a key id may be signed by any key.
        """
        found = self._named(kid)
        if not found and self.file is None:
            await self._fetch_unless_fresh()
            found = self._named(kid)
        return found

    def _named(self, kid: str | None) -> list[tuple[str, PublicKey]]:
        return [
            (thumbprint, key)
            for thumbprint, key in self._keys.items()
            if kid is None or key.kid in (None, kid)
        ]

    async def _fetch_unless_fresh(self) -> None:
        """Fetch the keys, once for all waiting callers, unless a fetch was tried in the last 30 s."""
        async with self._fetching:
            if time.monotonic() - self._tried_at >= _AGAIN_S:
                await self._fetch()

    async def refresh(self, every_s: float) -> None:
        """Fetch the keys if the last fetch was ``every_s`` ago; after an error, sooner."""
        # A running fetch, for a token with an unknown key, makes this one needless.
        if self.file is not None or self._fetching.locked():
            return
        due_s = min(every_s, _AGAIN_S) if self.error else every_s
        async with self._fetching:
            if time.monotonic() - self._tried_at >= due_s:
                await self._fetch()

    async def _fetch(self) -> None:
        # Set before the fetch, so that a failed fetch also begins the pause until the next one.
        self._tried_at = time.monotonic()
        try:
            keys = await asyncio.to_thread(_fetched, self._issuer)
        except KeysUnavailable as error:
            # Log only the first of several failures; /health shows the fault, and a later line its end.
            if not self.error:
                _log.error(
                    "keys of an issuer unavailable", issuer=self._issuer.issuer, error=str(error)
                )
            self.error = str(error)
            return
        if self.error or keys.keys() != self._keys.keys():
            _log.info("keys of an issuer", issuer=self._issuer.issuer, keys=len(keys))
        self.error = ""
        self._had_at = time.monotonic()
        self._keys = keys

    @property
    def age_s(self) -> float:
        """Seconds since the last successful fetch, or since the start if there was none."""
        return time.monotonic() - self._had_at

    def fault(self) -> ServerFault | None:
        """Return the fault that the issuer is unreachable, if it is."""
        if not self.error:
            return None
        kept = (
            f"its last {len(self._keys)} keys remain in force" if self._keys else "it has no keys"
        )
        return ServerFault(
            "issuer_away",
            self._issuer.issuer,
            f"{self.error}; {kept}, and the server tries again: let it reach the address",
        )


def _fetched(issuer: Issuer) -> Mapping[str, PublicKey]:
    """Return the keys at an issuer's address. It runs in a thread.

    Raises:
        KeysUnavailable: The keys cannot be fetched.
    """
    # Without an address, find it by discovery. The document must be of the same issuer, and its address must
    # obey the same rules as one in the settings.
    address = issuer.keys
    if address is None:
        root = issuer.issuer.rstrip("/")
        document = _json(_read(root + _DISCOVERY))
        address = document.get("jwks_uri")
        # OIDC Discovery requires that the document names the issuer for which it was requested.
        if document.get("issuer") != issuer.issuer:
            raise KeysUnavailable(f"the discovery document of {root} is of another issuer")
        if not isinstance(address, str):
            raise KeysUnavailable(f"the discovery document of {root} has no jwks_uri")
        try:
            require_address(address, "jwks_uri")
        except ConfigError as error:
            raise KeysUnavailable(str(error)) from None
    assert isinstance(address, str)
    return _parse(_read(address))


class _OnlyAddresses(HTTPRedirectHandler):
    """A handler that follows redirects only of the same scheme, to addresses that settings may name."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        try:
            require_address(newurl, "redirected to another address")
        except ConfigError as error:
            raise URLError(str(error)) from None
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise URLError(f"redirected to another scheme: {newurl[:100]}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Deadline:
    """The deadline of one fetch, at which its connections are cut.

    The timeout of a socket applies to each read: a peer that sends one byte a second could delay a fetch for
    ever.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        # A timer thread, because the fetching thread may be blocked in the middle of a handshake.
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def connect(self, *arguments: Any, **options: Any) -> socket.socket:
        """Connect like ``socket.create_connection``, and remember the socket to cut it at the deadline."""
        opened = socket.create_connection(*arguments, **options)
        with self._lock:
            # Remember a second handle of the same connection, because TLS detaches the first one.
            self._sockets.append(opened.dup())
            if self.is_over:
                opened.shutdown(socket.SHUT_RDWR)
        return opened

    def _cut(self) -> None:
        with self._lock:
            self.is_over = True
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


def _opener(deadline: _Deadline) -> OpenerDirector:
    """Return an opener of addresses whose connections are cut at the deadline."""

    def within(kind: type[_Connection]) -> Callable[..., _Connection]:
        def made(*arguments: Any, **options: Any) -> _Connection:
            connection = kind(*arguments, **options)
            connection._create_connection = deadline.connect  # type: ignore[attr-defined]
            return connection

        return made

    class Plain(HTTPHandler):
        def http_open(self, req: Request) -> HTTPResponse:
            return self.do_open(within(HTTPConnection), req)

    class Encrypted(HTTPSHandler):
        def https_open(self, req: Request) -> HTTPResponse:
            context = ssl.create_default_context()
            return self.do_open(within(HTTPSConnection), req, context=context)

    return build_opener(Plain(), Encrypted(), _OnlyAddresses())


def _read(address: str) -> bytes:
    deadline = _Deadline(_TIMEOUT_S)
    request = Request(address, headers={"Accept": "application/json"})
    try:
        with deadline, _opener(deadline).open(request, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(_BYTES_MAX + 1)
    except Exception as error:  # http.client raises other errors for answers that are not HTTP
        late = isinstance(getattr(error, "reason", error), TimeoutError)
        if deadline.is_over or late:
            reason = f"{address} did not answer within {_TIMEOUT_S:g} s"
        elif isinstance(error, OSError | ValueError):  # URLError and TimeoutError are OSErrors
            reason = f"{address}: {getattr(error, 'reason', error)}"
        else:
            reason = f"{address}: {type(error).__name__}"
        raise KeysUnavailable(reason) from error
    if deadline.is_over:
        raise KeysUnavailable(f"{address} did not answer within {_TIMEOUT_S:g} s")
    if len(data) > _BYTES_MAX:
        raise KeysUnavailable(f"{address} sent more than {_BYTES_MAX} bytes")
    return data


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KeysUnavailable("the answer is not JSON") from error
    if not isinstance(value, dict):
        raise KeysUnavailable("the answer is not a JSON object")
    return value


def _parse(data: bytes) -> Mapping[str, PublicKey]:
    """Return the public keys of a JWKS or of a PEM text, by thumbprint.

    Raises:
        KeysUnavailable: The data has no usable key, or is too large.
    """
    # Parsing and keys are bounded: the data comes from another server.
    if len(data) > _BYTES_MAX:
        raise KeysUnavailable(f"more than {_BYTES_MAX} bytes")
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            keys = [_of_pem(data)]
        else:
            listed = _json(data).get("keys")
            if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
                raise KeysUnavailable(f"not a JWKS: no list `keys` of at most {_KEYS_MAX}")
            # Ignore keys for encryption, and types that cannot sign.
            public = [
                each for each in listed if isinstance(each, dict) and each.get("kty") in _KINDS
            ]
            keys = [
                key
                for key in (KeySet.import_key_set({"keys": public}).keys if public else ())
                if isinstance(key, RSAKey | ECKey | OKPKey) and key.get("use") in (None, "sig")
            ]
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise KeysUnavailable(f"not keys: {type(error).__name__}") from error
    if not keys:
        raise KeysUnavailable("there is no public key for signatures")
    return {key.thumbprint(): key for key in keys}


def _of_pem(data: bytes) -> PublicKey:
    for kind in _KINDS:
        try:
            found = import_key(data, kind)
        except (JoseError, ValueError, TypeError):
            continue
        assert isinstance(found, RSAKey | ECKey | OKPKey)
        return found
    raise KeysUnavailable("no key of RSA, EC or Ed25519 in PEM")
