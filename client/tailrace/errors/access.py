"""Errors of access: identities, grants, quotas and the operator."""

from __future__ import annotations

from tailrace.errors.endings import SubscriptionBroken
from tailrace.errors.tree import TailraceError


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
