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
    """How somebody proves who they are."""

    JWT = "jwt"
    API_KEY = "api_key"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified sender."""

    kind: IdentityKind
    issuer: str
    """The issuer: ``iss`` of a JWT; empty for keys and certificates."""
    name: str
    """``sub`` of a JWT, the name of a key, the name in a certificate; unique within kind and issuer."""
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Claims of a JWT; empty for others."""
    expires_at: float | None = None
    """Seconds since 1970; None: never."""
    key_id: str = ""
    """Which key proves it: when that key goes, so do the streams that it opened."""

    def is_same(self, other: Identity) -> bool:
        """Return whether both are the same somebody, whatever token each has shown."""
        return self.key == other.key

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of the identity."""
        return self.kind.value, self.issuer, self.name

    def __str__(self) -> str:
        """Return it for people to read, as ``jwt anna of https://issuer.example``."""
        return f"{self.kind.value} {self.name}" + (f" of {self.issuer}" if self.issuer else "")


def key_of(principal: Principal) -> tuple[str, ...]:
    """Return the key of a principal; anonymous callers have the same."""
    identity = getattr(principal, "identity", None)
    return identity.key if isinstance(identity, Identity) else (principal.name,)


def is_same(one: Principal, other: Principal) -> bool:
    """Return whether two principals are the same somebody, whatever each has shown."""
    return key_of(one) == key_of(other)


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Unverified credentials. Its text in logs and tracebacks never has the token."""

    token: str | None = None
    """The token or key, without the word ``Bearer``; None: there was none."""
    certificate_names: tuple[str, ...] = ()
    """Names in the client's certificate, which the listener has verified; none without mTLS."""
    address: str = ""
    """The peer's address without its port, as failures are counted; empty where it has none."""
    transport: str = ""
    """How it came, as the audit names it: ``grpc``, ``http``, ``websocket``."""

    def with_token(self, token: str | None) -> Credentials:
        """Return the same with a token that came later."""
        return replace(self, token=token)

    def __repr__(self) -> str:
        """Return what may be shown."""
        token = "none" if self.token is None else "hidden"
        return f"Credentials(token={token}, certificate_names={self.certificate_names!r})"


def bearer_token(values: Sequence[str]) -> str | None:
    """Return the token of the ``authorization`` fields of a request over HTTP or gRPC; None without a field.

    Raises:
        Unauthenticated: There are two, or another scheme; what came is never shown.
    """
    if not values:
        return None
    if len(values) > 1:
        raise Unauthenticated("two authorization fields came; send one")
    scheme, _, token = values[0].strip().partition(" ")
    token = token.strip()
    if scheme.lower() != _SCHEME or not token:
        raise Unauthenticated("authorization has another form than `Bearer TOKEN`")
    # A token is one word of visible ASCII in every form that there is.
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Unauthenticated("the token has characters that no token has")
    return token
