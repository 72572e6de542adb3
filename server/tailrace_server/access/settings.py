"""The settings of authentication, audit and quotas; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - settings read the annotation

from tailrace_server.resources.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The accepted callers and their grants. Without these settings every caller may read everything."""

    identities: Path | None = setting(
        None,
        "file",
        "TOML file of the issuers whose JWTs are accepted (docs/security.md)",
    )
    api_keys: Path | None = setting(
        None,
        "file",
        "file of hashed API keys, made by `tailrace keys add`; read again when it changes",
    )
    certificate_identities: bool = setting(
        False,
        "yes or no",
        "take the identity from the client's certificate if the request has no token",
    )
    policy: Path | None = setting(
        None,
        "file",
        "TOML file of grants (docs/security.md); read again when it changes",
    )
    jwks_refresh_s: float = setting(
        300.0,
        "seconds",
        "interval at which the keys of an issuer are fetched; a withdrawn key is valid until then",
    )

    @property
    def asks(self) -> bool:
        """True if callers must prove an identity."""
        named = self.identities is not None or self.api_keys is not None
        return named or self.certificate_identities


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The file of the audit, and the policy when it cannot be written."""

    audit: Path | None = setting(
        None,
        "file",
        "file for audit lines, one JSON object for each use of the server, or `stderr`",
    )
    audit_required: bool = setting(
        False,
        "yes or no",
        "reject new subscriptions and reads while the audit cannot be written",
    )
    audit_patience_s: float = setting(
        30.0,
        "seconds",
        "longest time that a required audit may fail; then the server stops with exit status 1",
    )
    audit_queue_bytes: int = setting(
        4 << 20,
        "bytes",
        "most bytes of audit lines that wait to be written, about 8,000 lines; further lines are "
        "dropped and counted",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """The most that one principal may use. Each quota is off unless it is set, except for failures."""

    quota_connections: int | None = setting(
        None, "connections", "most connections in use by one principal"
    )
    quota_streams: int | None = setting(
        None,
        "calls",
        "most open gRPC calls, WebSockets, event streams and requests of one principal",
    )
    quota_subscriptions: int | None = setting(
        None, "subscriptions", "most open subscriptions of one principal"
    )
    quota_criteria: int | None = setting(
        None,
        "criteria",
        "most distinct criteria sets of one principal; each one is compared with every change",
    )
    quota_keys: int | None = setting(
        None, "keys", "most keys in all criteria of one principal's open subscriptions and reads"
    )
    quota_history_reads: int | None = setting(
        None, "reads", "most simultaneous reads of history by one principal"
    )
    quota_history_bytes: int | None = setting(
        None,
        "bytes",
        "most bytes of history per second for one principal; reads above it are slowed down",
    )
    quota_requests: int | None = setting(
        None, "requests", "most calls, requests and handshakes per second of one principal"
    )
    quota_address_share: int = setting(
        10,
        "principals",
        "number of principals whose quotas one address may use together; the users of an office "
        "share one address",
    )
    quota_failed_authentications: int | None = setting(
        100,
        "failures",
        "most wrong credentials per minute from one address; then the server ignores credentials "
        "from it",
    )
