"""Errors of the server process, in addition to those that it shares with clients (`tailrace.errors`)."""

from __future__ import annotations

from tailrace.errors import InternalError, TailraceError


class CannotStart(TailraceError):
    """The process cannot start, by a fault of its operator: a port in use, a folder that is no log root."""

    code = "CANNOT_START"


class ConfigError(CannotStart):
    """A setting does not exist or has an invalid value; the error has the setting and its source."""

    code = "CONFIG"


def as_tailrace_error(error: Exception) -> TailraceError:
    """Return an error as a `TailraceError`; an error of another class is a bug and becomes `InternalError`."""
    if isinstance(error, TailraceError):
        return error
    internal = InternalError(f"{type(error).__name__}: {error}")
    internal.__cause__ = error
    return internal
