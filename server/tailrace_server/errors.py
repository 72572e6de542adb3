"""Errors of the server's own process, beside the tree that it shares with clients (`tailrace.errors`)."""

from __future__ import annotations

from tailrace.errors import InternalError, TailraceError


class CannotStart(TailraceError):
    """The process cannot begin its work: a port in use, a folder that is no log root. The operator's doing."""

    code = "CANNOT_START"


class ConfigError(CannotStart):
    """A setting that does not exist or has no such value; says which and where it stands."""

    code = "CONFIG"


def as_tailrace_error(error: Exception) -> TailraceError:
    """Return an error as one of the tree: anything foreign is our bug."""
    if isinstance(error, TailraceError):
        return error
    internal = InternalError(f"{type(error).__name__}: {error}")
    internal.__cause__ = error
    return internal
