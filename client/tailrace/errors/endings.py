"""How subscriptions and connections end."""

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
