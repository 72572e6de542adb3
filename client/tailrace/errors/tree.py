"""The root of the tree of errors, and the error for bugs of tailrace."""

from __future__ import annotations

from typing import ClassVar


class TailraceError(Exception):
    """The base class of all errors of tailrace."""

    code: ClassVar[str] = "INTERNAL"
    retriable: bool = False
    """True if the same request may succeed later."""
    advice: ClassVar[str] = ""
    """The remedy, in a sentence; docs/errors.md prints it."""

    def figures(self) -> dict[str, str]:
        """Return the values that the error carries, as texts by name."""
        return {}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by attributes, since the constructors of subclasses take other arguments than the message."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(
    cls: type[TailraceError], args: tuple[object, ...], state: dict[str, object]
) -> TailraceError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InternalError(TailraceError):
    """A bug in tailrace; never retried. Please report it with the log of the server."""

    code = "INTERNAL"
    advice = "Report it with the log of the server."
