"""The credentials of a request or a connection, before they are verified."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
