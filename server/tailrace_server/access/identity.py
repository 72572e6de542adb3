"""The credentials of a request or a connection, and the identity that they prove once they are verified."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from tailrace.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace_server.grants.principal import Principal

_SCHEME = "bearer"


class IdentityKind(Enum):
    """The kind of proof by which a caller is identified."""

    JWT = "jwt"
    API_KEY = "api_key"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Identity:
    """The verified identity of a caller."""

    kind: IdentityKind
    issuer: str
    """The issuer: ``iss`` of a JWT; empty for keys and certificates."""
    name: str
    """``sub`` of a JWT, the name of a key, the name in a certificate; unique within kind and issuer."""
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The claims of a JWT or the names in a certificate; empty for API keys."""
    expires_at: float | None = None
    """Time at which the credential expires, in seconds since 1970; None: it does not expire."""
    key_id: str = ""
    """The key that proves the identity; when that key is removed, the streams opened with it end."""

    def is_same(self, other: Identity) -> bool:
        """Return True if both are the same caller; their tokens may differ."""
        return self.key == other.key

    @property
    def key(self) -> tuple[str, str, str]:
        """The kind, issuer and name, which identify a caller."""
        return self.kind.value, self.issuer, self.name

    def __str__(self) -> str:
        """Return a text for people, for instance ``jwt anna of https://issuer.example``."""
        return f"{self.kind.value} {self.name}" + (f" of {self.issuer}" if self.issuer else "")


def key_of(principal: Principal) -> tuple[str, ...]:
    """Return the key of a principal; all anonymous callers have the same key."""
    identity = getattr(principal, "identity", None)
    return identity.key if isinstance(identity, Identity) else (principal.name,)


def is_same(one: Principal, other: Principal) -> bool:
    """Return True if two principals are the same caller; their credentials may differ."""
    return key_of(one) == key_of(other)


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The unverified credentials of a caller. Their text in logs and tracebacks never contains the token."""

    token: str | None = None
    """The token or API key, without the word ``Bearer``; None if the caller sent none."""
    certificate_names: tuple[str, ...] = ()
    """The names in the client's certificate, which the listener has verified; empty without mTLS."""
    address: str = ""
    """The peer's address without its port, by which failures are counted; empty if the peer has none."""
    transport: str = ""
    """The transport, by its name in the audit: ``grpc``, ``http``, ``websocket``."""

    def with_token(self, token: str | None) -> Credentials:
        """Return these credentials with another token."""
        return replace(self, token=token)

    def __repr__(self) -> str:
        """Return a text without the token."""
        token = "none" if self.token is None else "hidden"
        return f"Credentials(token={token}, certificate_names={self.certificate_names!r})"


def bearer_token(values: Sequence[str]) -> str | None:
    """Return the token of the ``authorization`` fields of a request over HTTP or gRPC; None without a field.

    Raises:
        Unauthenticated: There are two fields, another scheme, or a malformed token; never shows the value.
    """
    if not values:
        return None
    if len(values) > 1:
        raise Unauthenticated("the request has two authorization fields; send one")
    scheme, _, token = values[0].strip().partition(" ")
    token = token.strip()
    if scheme.lower() != _SCHEME or not token:
        raise Unauthenticated("the authorization field does not have the form `Bearer TOKEN`")
    # A token is one word of visible ASCII in every form that there is.
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Unauthenticated("the token has characters that are not allowed in a token")
    return token
