"""Errors that end subscriptions and connections, also by access rights, quotas and operators."""

from __future__ import annotations

from tailrace.errors.tree import TailraceError


class SubscriptionClosed(TailraceError):
    """You have closed the subscription or its client, or have not entered it, and then used it."""

    code = "SUBSCRIPTION_CLOSED"
    advice = "Subscribe again."


class SubscriptionBroken(TailraceError):
    """The server or the network ended the subscription; ``__cause__`` has the reason. Resume by cursor."""

    code = "SUBSCRIPTION_BROKEN"
    retriable = True
    advice = "Subscribe again after the last cursor that was processed."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Store the cursor to resume from; None if it is unknown."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, if it is known."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class HeartbeatMissed(SubscriptionBroken):
    """Neither a capture nor a heartbeat came within the time that the server announced."""

    code = "HEARTBEAT_MISSED"
    advice = "Check the network for a connection that is dead; resume from the cursor."


class SubscriberTooSlow(SubscriptionBroken):
    """The subscriber did not read a message within the send deadline.

    While the server is short of memory, the deadline is one second.
    """

    code = "SUBSCRIBER_TOO_SLOW"
    advice = (
        "Read faster, request fewer changes, or request them in smaller steps; resume from the "
        "cursor."
    )


class SubscriptionOverrun(SubscriptionBroken):
    """The ring dropped captures that a subscription with the overrun policy DISCONNECT had not received.

    The client does not retry by itself.
    """

    code = "SUBSCRIPTION_OVERRUN"
    retriable = False
    advice = (
        "Read faster, or request fewer changes. Subscribe again after the cursor to get the "
        "missed changes."
    )


class ServerStopping(SubscriptionBroken):
    """The server stops gracefully. Resume by cursor, later or at another server."""

    code = "SERVER_STOPPING"
    advice = "Resume from the cursor, here after a moment or at another server."


class ServerFull(TailraceError):
    """The server has not enough memory left for the request. A retry helps later."""

    code = "SERVER_FULL"
    retriable = True
    advice = "Retry after increasing pauses, request less at once, or give the server more memory."


class TransportError(TailraceError):
    """The connection failed. The cause is the network; a retry helps."""

    code = "TRANSPORT"
    retriable = True
    advice = "Retry after increasing pauses."


class ConnectTimeout(TransportError):
    """The server could not be reached in time."""

    code = "CONNECT_TIMEOUT"
    advice = "Check address and network; retry after increasing pauses."


class NotGrpc(TransportError):
    """The server at that address answers in HTTP/1, not in gRPC. The usual cause is a wrong port.

    The client retries anyway: behind a proxy this state can be temporary.
    """

    code = "NOT_GRPC"
    advice = "Connect to the address in the server's `--grpc`, not to that in `--http`."

    def __init__(self, address: str) -> None:
        """Store the address of the failed connection."""
        super().__init__(
            f"{address} answers in HTTP/1, not in gRPC; give the server's gRPC address, not its "
            "HTTP address"
        )
        self.address = address

    def figures(self) -> dict[str, str]:
        """Return the address of the failed connection."""
        return {"address": self.address}


class TlsFailed(TransportError):
    """The TLS handshake failed: one side does not use TLS, or does not trust the certificate of the other.

    A new subscription ends with this error at once. A subscription that was open before is retried, since the
    certificates may have been renewed.
    """

    code = "TLS_FAILED"
    advice = "Do what the text of the error says: it names the side and the fault."

    def __init__(self, address: str, reason: str) -> None:
        """Store the address of the failed connection and the reason."""
        super().__init__(f"no TLS connection to {address}: {reason}")
        self.address = address
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return the address of the failed connection and the reason."""
        return {"address": self.address, "reason": self.reason}


class Unauthenticated(TailraceError):
    """The request had no credential, or one that this server does not accept. A retry does not help.

    An open stream ends with this error when the server no longer accepts its credential, for example since the
    key was removed.
    """

    code = "UNAUTHENTICATED"
    advice = "Send a token or key that this server accepts; docs/security.md says in which field."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Store the cursor to resume from, if a stream ended. The message never contains the credential."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, if a stream ended."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class TokenExpired(SubscriptionBroken):
    """The token of a request or of an open stream has expired. A retry helps with a new token."""

    code = "TOKEN_EXPIRED"
    advice = (
        "Get a new token and resume from the cursor; or send the new token on the stream before the "
        "old one expires."
    )


class NotPermitted(TailraceError):
    """The caller is known, but has no grant for the request. A retry does not help.

    The text never reveals whether the named object exists. An open stream ends with this error when its grants
    are withdrawn.
    """

    code = "NOT_PERMITTED"
    advice = "Request less, or let the server's operator grant it."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Store the cursor to resume from, if a stream ended."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, if a stream ended."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class QuotaExceeded(TailraceError):
    """The caller or its address has reached a quota. A retry helps later."""

    code = "QUOTA_EXCEEDED"
    retriable = True
    advice = "Wait for `retry_after_s`, end another of your own uses, or request less."

    def __init__(self, quota: str, limit: float, used: float, retry_after_s: float) -> None:
        """Store the quota's name, its limit, the used amount, and the seconds to wait before a retry."""
        super().__init__(
            f"quota {quota}: {used:g} of {limit:g} are used; try again in {retry_after_s:g} s"
        )
        self.quota = quota
        self.limit = limit
        self.used = used
        self.retry_after_s = retry_after_s

    def figures(self) -> dict[str, str]:
        """Return the quota's name, its limit, the used amount, and the seconds to wait before a retry."""
        return {
            "quota": self.quota,
            "limit": f"{self.limit:g}",
            "used": f"{self.used:g}",
            "retry_after_s": f"{self.retry_after_s:g}",
        }


class EndedByOperator(SubscriptionBroken):
    """An operator of the server has ended the subscription, with a reason. The client does not retry."""

    code = "ENDED_BY_OPERATOR"
    retriable = False
    advice = "Read the reason in the error, and ask the operator before you subscribe again."
