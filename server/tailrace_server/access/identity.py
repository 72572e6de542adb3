"""The identity of a caller, once a credential has been verified."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.grants.principal import Principal


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
