"""Errors of the server's own process, beside the tree that it shares with clients (`tailrace.errors`)."""

from __future__ import annotations

from tailrace.errors import TailraceError


class CannotStart(TailraceError):
    """The process cannot begin its work: a port in use, a folder that is no log root. The operator's doing."""

    code = "CANNOT_START"


class ConfigError(CannotStart):
    """A setting that does not exist or has no such value; says which and where it stands."""

    code = "CONFIG"
