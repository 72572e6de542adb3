"""The file of issuers: whose JWTs are accepted, by which keys and under which conditions.

::

    [[issuer]]
    issuer = "https://login.example/realms/shop"    # `iss` of its tokens, exactly
    audience = "tailrace"                           # `aud` has it; of several, one of them
    algorithms = ["RS256"]                          # those that are accepted, of ALGORITHMS
    keys = "https://login.example/jwks.json"        # or a file, JWKS or PEM; absent: OIDC discovery
    leeway_s = 10                                   # for clocks that differ
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - its dataclass is public
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace_server.errors import ConfigError

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Signatures by a private key, checked by a public one. None of a shared secret, and not ``none``."""
_MEMBERS: Final = frozenset({"issuer", "audience", "algorithms", "keys", "leeway_s"})
_LEEWAY_MAX_S: Final = 300
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


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
    audiences = _texts(table.get("audience"), f"{where}: audience")
    algorithms = _texts(table.get("algorithms"), f"{where}: algorithms")
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


def _texts(value: object, where: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(each, str) and each for each in values)
    ):
        raise ConfigError(f"{where} must be a text, or a list of at least one")
    return tuple(values)
