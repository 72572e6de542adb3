"""The issuers whose JWTs are accepted, and the public keys of each, cached while the issuer is away.

The file of issuers::

    [[issuer]]
    issuer = "https://login.example/realms/shop"    # `iss` of its tokens, exactly
    audience = "tailrace"                           # `aud` has it; of several, one of them
    algorithms = ["RS256"]                          # those that are accepted, of ALGORITHMS
    keys = "https://login.example/jwks.json"        # or a file, JWKS or PEM; absent: OIDC discovery
    leeway_s = 10                                   # for clocks that differ

Keys come from one of two places::

    file       read at the start, and again when it has changed
    address    fetched in a thread, every `jwks_refresh_s`, and when a token names a key that is not there, then
               at most every 30 s; bounded in time and size, and never led to plain text or a file

If the keys cannot be fetched again, the ones before stay in force: an issuer that is away locks no caller out.
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
"""Signatures by a private key, checked by a public one. None of a shared secret, and not ``none``."""
_MEMBERS: Final = frozenset({"issuer", "audience", "algorithms", "keys", "leeway_s"})
_LEEWAY_MAX_S: Final = 300
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


_Connection = TypeVar("_Connection", HTTPConnection, HTTPSConnection)
PublicKey = RSAKey | ECKey | OKPKey

_TIMEOUT_S: Final = 5.0
_BYTES_MAX: Final = 256 << 10
_KEYS_MAX: Final = 200
_AGAIN_S: Final = 30.0
"""Least time between two fetches that unknown keys cause."""
_KINDS: Final = ("RSA", "EC", "OKP")
"""Of keys that sign; a JWKS may have others."""
_DISCOVERY: Final = "/.well-known/openid-configuration"
_log = structlog.get_logger("tailrace.access")


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer of tokens."""

    issuer: str
    audiences: tuple[str, ...]
    """One of them must be in a token's ``aud``."""
    algorithms: tuple[str, ...]
    keys: Path | str | None
    """A file, an address, or None: the issuer's discovery document names the address."""
    leeway_s: float


def read_issuers(file: Path) -> tuple[Issuer, ...]:
    """Return the issuers that a file names.

    Raises:
        ConfigError: It cannot be read, or says something that has no meaning; names file and place.
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
        raise ConfigError(f"identities: {file}: it names no [[issuer]]")
    found = tuple(
        _issuer(table, f"identities: {file}, issuer {place}", file.parent)
        for place, table in enumerate(tables, 1)
    )
    if len({each.issuer for each in found}) < len(found):
        raise ConfigError(f"identities: {file}: an issuer is there twice")
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
            raise ConfigError(f"{where}: algorithms: {each!r} is none of {', '.join(ALGORITHMS)}")
    leeway_s = table.get("leeway_s", 10)
    if isinstance(leeway_s, bool) or not isinstance(leeway_s, int | float):
        raise ConfigError(f"{where}: leeway_s must be a number of seconds")
    if not 0 <= leeway_s <= _LEEWAY_MAX_S:
        raise ConfigError(f"{where}: leeway_s must lie in 0 to {_LEEWAY_MAX_S}")
    return Issuer(
        name, audiences, algorithms, _keys(table.get("keys"), name, where, folder), leeway_s
    )


def _keys(value: object, issuer: str, where: str, folder: Path) -> Path | str | None:
    if value is None:
        require_address(issuer, f"{where}: without keys the issuer is an address for discovery")
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: keys must be an address or a file")
    if "://" in value:
        require_address(value, f"{where}: keys")
        return value
    return folder / value


def require_address(text: str, where: str) -> None:
    """Refuse what is no address of TLS; plain HTTP is for issuers on this machine.

    Raises:
        ConfigError: It is none.
    """
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigError(f"{where}: not an address: {text[:100]!r}") from None
    if parts.username or parts.password:
        raise ConfigError(f"{where}: an address with a password in it is not used")
    if host and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        return
    raise ConfigError(
        f"{where}: must be an https:// address (http:// on loopback only), not {text[:100]!r}"
    )


class KeysUnavailable(Exception):
    """The keys of an issuer cannot be had; says why."""


class IssuerKeys:
    """The keys of one issuer. All methods but the fetch itself run on the event loop."""

    def __init__(self, issuer: Issuer) -> None:
        """Read a file of keys; those at an address are fetched when they are first needed.

        Raises:
            ConfigError: The file has none.
        """
        self._issuer = issuer
        self._keys: Mapping[str, PublicKey] = {}
        """By thumbprint."""
        self._fetching = asyncio.Lock()
        self._tried_at = float("-inf")
        """Monotonic time of the last fetch."""
        self._had_at = time.monotonic()
        """When they were last had, or, before the first time, when they began to be wanted."""
        self.error = ""
        """Why the last fetch failed; empty where it did not."""
        if isinstance(issuer.keys, Path):
            self.reload()

    @property
    def file(self) -> Path | None:
        """The file that they are in; None where they come from an address."""
        return self._issuer.keys if isinstance(self._issuer.keys, Path) else None

    def reload(self) -> None:
        """Read the file again; one that cannot be read leaves the keys as they are.

        Raises:
            ConfigError: It cannot be read, or has no key.
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
        """Return the thumbprint of each key, by its id, or by itself where it has none."""
        return {key.kid or thumbprint: thumbprint for thumbprint, key in self._keys.items()}

    @property
    def source(self) -> str:
        """The issuer that they are of."""
        return self._issuer.issuer

    def has(self, thumbprint: str) -> bool:
        """Return whether a key is still among them."""
        return thumbprint in self._keys

    async def candidates(self, kid: str | None) -> list[tuple[str, PublicKey]]:
        """Return the keys that a token of a key id may be signed by, each with its thumbprint.

        A token without a key id may be signed by any.
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
        """Fetch, once for all who wait, unless that was tried a moment ago."""
        async with self._fetching:
            if time.monotonic() - self._tried_at >= _AGAIN_S:
                await self._fetch()

    async def refresh(self, every_s: float) -> None:
        """Fetch if the last fetch is so long ago; an issuer that failed is asked again sooner."""
        if self.file is not None or self._fetching.locked():
            return
        due_s = min(every_s, _AGAIN_S) if self.error else every_s
        async with self._fetching:
            if time.monotonic() - self._tried_at >= due_s:
                await self._fetch()

    async def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        try:
            keys = await asyncio.to_thread(_fetched, self._issuer)
        except KeysUnavailable as error:
            # Said when it begins; /health and the next line say when it is over.
            if not self.error:
                _log.error(
                    "keys of an issuer cannot be had", issuer=self._issuer.issuer, error=str(error)
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
        """Seconds since they were last had from their address, or since the start where they never were."""
        return time.monotonic() - self._had_at

    def fault(self) -> ServerFault | None:
        """Return that the issuer is away, if so."""
        if not self.error:
            return None
        kept = f"its last {len(self._keys)} keys stay in force" if self._keys else "it has no keys"
        return ServerFault(
            "issuer_away",
            self._issuer.issuer,
            f"{self.error}; {kept}, and it is asked again: let the server reach it",
        )


def _fetched(issuer: Issuer) -> Mapping[str, PublicKey]:
    """Return the keys at an issuer's address; called in a thread.

    Raises:
        KeysUnavailable: They cannot be had.
    """
    address = issuer.keys
    if address is None:
        root = issuer.issuer.rstrip("/")
        document = _json(_read(root + _DISCOVERY))
        address = document.get("jwks_uri")
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
    """Follows redirects to what could be a setting: TLS anywhere, plain text on this machine, and no file."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        try:
            require_address(newurl, "led to another address")
        except ConfigError as error:
            raise URLError(str(error)) from None
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise URLError(f"led to another scheme: {newurl[:100]}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Deadline:
    """The time of one fetch: when it is over, its connections are cut.

    The time-out of a socket is for each read: a peer that sends a byte a second would keep us waiting for ever,
    in a handshake or in a header.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
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
        """Connect as ``socket.create_connection`` does."""
        opened = socket.create_connection(*arguments, **options)
        with self._lock:
            # A second handle of the same connection: TLS takes the first one away.
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
    """Return what opens addresses, whose connections end with the deadline."""

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
    except Exception as error:  # http.client has errors of its own for answers that are no HTTP
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
        raise KeysUnavailable(f"{address} sends more than {_BYTES_MAX} bytes")
    return data


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KeysUnavailable("the answer is not JSON") from error
    if not isinstance(value, dict):
        raise KeysUnavailable("the answer is no JSON object")
    return value


def _parse(data: bytes) -> Mapping[str, PublicKey]:
    """Return the public keys of a JWKS or of a text in PEM, by thumbprint.

    Raises:
        KeysUnavailable: There is none.
    """
    if len(data) > _BYTES_MAX:
        raise KeysUnavailable(f"more than {_BYTES_MAX} bytes")
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            keys = [_of_pem(data)]
        else:
            listed = _json(data).get("keys")
            if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
                raise KeysUnavailable(f"no JWKS: no list `keys` of at most {_KEYS_MAX}")
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
