"""Errors that end subscriptions and connections, those of access, quotas and operators included."""

from __future__ import annotations

from tailrace.errors.tree import TailraceError


class SubscriptionClosed(TailraceError):
    """You closed the subscription, or the client that it belongs to, and then used it."""

    code = "SUBSCRIPTION_CLOSED"
    advice = "Subscribe again."


class SubscriptionBroken(TailraceError):
    """The other side or the network ended the subscription; ``__cause__`` says what. Resume by cursor."""

    code = "SUBSCRIPTION_BROKEN"
    retriable = True
    advice = "Subscribe again after the last cursor that was processed."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Keep the cursor to resume from, where one is known."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, where one is known."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class HeartbeatMissed(SubscriptionBroken):
    """Neither a capture nor a heartbeat came within the time that the server announced."""

    code = "HEARTBEAT_MISSED"
    advice = "Look for a dead connection between, and resume by cursor."


class SubscriberTooSlow(SubscriptionBroken):
    """The subscriber left a message unread past the send deadline, or for a second while memory was short."""

    code = "SUBSCRIBER_TOO_SLOW"
    advice = "Read faster, ask for less, or request in smaller steps; resume by cursor."


class SubscriptionOverrun(SubscriptionBroken):
    """The ring has overtaken a subscription that asked to be disconnected then. Not to be retried by itself."""

    code = "SUBSCRIPTION_OVERRUN"
    retriable = False
    advice = (
        "Read faster, or ask for less. Subscribe again after the cursor for all that was missed."
    )


class ServerStopping(SubscriptionBroken):
    """The server stops in good order; a subscriber resumes elsewhere or later by its cursor."""

    code = "SERVER_STOPPING"
    advice = "Resume by cursor, here in a moment or at another server."


class ServerFull(TailraceError):
    """The server has no room in its memory for what the request would keep there. A retry helps later."""

    code = "SERVER_FULL"
    retriable = True
    advice = "Retry after a pause that grows, ask for less at once, or give the server more memory."


class TransportError(TailraceError):
    """The connection failed. The network's doing; a retry helps."""

    code = "TRANSPORT"
    retriable = True
    advice = "Retry after a pause that grows."


class ConnectTimeout(TransportError):
    """The server could not be reached in time."""

    code = "CONNECT_TIMEOUT"
    advice = "Check address and network; retry after a pause that grows."


class NotGrpc(TransportError):
    """Something answers at that address, but not in gRPC. Mostly the port is the wrong one.

    It is retried all the same: behind a proxy it passes.
    """

    code = "NOT_GRPC"
    advice = "Give the address that the server was started with as `--grpc`, not that of `--http`."

    def __init__(self, address: str) -> None:
        """Keep the address that was asked."""
        super().__init__(
            f"{address} answers in HTTP/1, not in gRPC; give the server's gRPC address, not its HTTP one"
        )
        self.address = address

    def figures(self) -> dict[str, str]:
        """Return the address that was asked."""
        return {"address": self.address}


class TlsFailed(TransportError):
    """TLS to the server did not come about: one side does not speak it, or does not trust the other.

    A subscription that never stood ends with it at once. One that did is tried again: certificates are renewed.
    """

    code = "TLS_FAILED"
    advice = "Do what its text says: it names the side and what is wrong with it."

    def __init__(self, address: str, reason: str) -> None:
        """Store the address, and why there is no connection to it."""
        super().__init__(f"no TLS connection to {address}: {reason}")
        self.address = address
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return the address that was asked, and the reason."""
        return {"address": self.address, "reason": self.reason}


class Unauthenticated(TailraceError):
    """No credential came, or one that proves nothing to this server. A retry does not help.

    An open stream ends with it when the credential that it was opened with is no longer accepted: its key was
    removed.
    """

    code = "UNAUTHENTICATED"
    advice = "Send a token or key that this server accepts; docs/security.md says where it travels."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Keep the cursor to resume from, where a stream ended; the message never has the credential."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, where a stream ended."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class TokenExpired(SubscriptionBroken):
    """The token has expired, that of a request or of an open stream. A retry helps with a new token."""

    code = "TOKEN_EXPIRED"
    advice = "Get a new token and resume by cursor; or send the new one on the stream before that."


class NotPermitted(TailraceError):
    """The caller is known, and was not granted what was asked for. A retry does not help.

    The text never reveals whether the named thing exists. An open stream ends with it when what it reads is no
    longer granted.
    """

    code = "NOT_PERMITTED"
    advice = "Ask for less, or have the operator of the server grant it."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Keep the cursor to resume from, where a stream ended."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, where a stream ended."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class QuotaExceeded(TailraceError):
    """The caller, or its address, has as much as it may have. A retry helps later."""

    code = "QUOTA_EXCEEDED"
    retriable = True
    advice = "Wait as long as `retry_after_s` says, end something of your own, or ask for less."

    def __init__(self, quota: str, limit: float, used: float, retry_after_s: float) -> None:
        """Keep the quota's name, its limit, what is used of it, and when to come again, in seconds."""
        super().__init__(
            f"quota {quota}: {used:g} of {limit:g} are used; try again in {retry_after_s:g} s"
        )
        self.quota = quota
        self.limit = limit
        self.used = used
        self.retry_after_s = retry_after_s

    def figures(self) -> dict[str, str]:
        """Return the quota, its limit, what is used, and the seconds to wait."""
        return {
            "quota": self.quota,
            "limit": f"{self.limit:g}",
            "used": f"{self.used:g}",
            "retry_after_s": f"{self.retry_after_s:g}",
        }


class EndedByOperator(SubscriptionBroken):
    """An operator of the server has ended the subscription; the text gives the reason. Not to be retried."""

    code = "ENDED_BY_OPERATOR"
    retriable = False
    advice = "Read the reason, and ask the operator before you subscribe again."
