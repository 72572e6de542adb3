"""The settings of the doors; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - settings read the annotation

from tailrace_server.capture.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The callers that are let in, and their grants. Without settings: every caller, and everything."""

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
    policy: Path | None = setting(
        None,
        "file",
        "a TOML file of what is granted to whom, read again when it changes: docs/security.md has its form",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The file of the audit, and the policy when it cannot be written."""

    audit: Path | None = setting(
        None,
        "file",
        "where each use of the server is recorded, a JSON object a line: a file, or `stderr`",
    )
    audit_required: bool = setting(
        False,
        "yes or no",
        "whether nobody is served unrecorded: while the audit cannot be written, new subscriptions and reads "
        "are refused",
    )
    audit_patience_s: float = setting(
        30.0,
        "seconds",
        "how long an audit that is required may stand still; then the server stops in good order, with exit "
        "status 1",
    )
    audit_queue_bytes: int = setting(
        4 << 20,
        "bytes",
        "of lines that wait to be written, some 8,000; what does not fit is lost, and counted",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """How much one principal may have. Off unless a number is given, but for failures."""

    quota_connections: int | None = setting(
        None, "connections", "of one principal on which something is under way"
    )
    quota_streams: int | None = setting(
        None, "calls", "of one principal under way: gRPC calls, WebSockets, event streams, requests"
    )
    quota_subscriptions: int | None = setting(
        None, "subscriptions", "of one principal that are open"
    )
    quota_criteria: int | None = setting(
        None, "criteria", "distinct sets of one principal: each is compared with every change"
    )
    quota_keys: int | None = setting(
        None, "keys", "in all criteria of one principal's open subscriptions and reads"
    )
    quota_history_reads: int | None = setting(None, "reads", "of history by one principal at once")
    quota_history_bytes: int | None = setting(
        None, "bytes", "of history a second for one principal; above it reads are slowed down"
    )
    quota_requests: int | None = setting(
        None, "requests", "of one principal a second: calls, requests, handshakes"
    )
    quota_address_share: int = setting(
        10, "principals", "whose quotas one address may use together; an office has one address"
    )
    quota_failed_authentications: int | None = setting(
        100,
        "failures",
        "of one address a minute; then its credentials are not looked at until there is one to spare",
    )
