"""What the server needs to know to tell callers apart; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - settings read the annotation

from tailrace_server.capture.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who is let in. Without any of these everybody who reaches the server is."""

    identities: Path | None = setting(
        None,
        "file",
        "a TOML file of the issuers whose JWTs are accepted: docs/security.md has its form",
    )
    api_keys: Path | None = setting(
        None, "file", "of hashed API keys, made by `tailrace keys add`; read again when it changes"
    )
    certificate_identities: bool = setting(
        False,
        "yes or no",
        "whether the name in a client's certificate is an identity where no token comes",
    )
    jwks_refresh_s: float = setting(
        300.0,
        "seconds",
        "how often an issuer is asked for its keys; a key that is gone from them is accepted so much longer",
    )

    @property
    def asks(self) -> bool:
        """Whether callers have to say who they are."""
        named = self.identities is not None or self.api_keys is not None
        return named or self.certificate_identities
