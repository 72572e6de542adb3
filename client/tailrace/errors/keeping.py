"""Errors that are kept or raised again, without the frames that they passed through."""

from __future__ import annotations

import traceback
from copy import copy

from tailrace.errors.tree import InternalError, TailraceError


def kept(error: Exception) -> TailraceError:
    """Return an error as one of the tree that may be kept: without its frames, which would be kept with it.

    Of one that is our bug the traceback stays as text, in a note.
    """
    if not isinstance(error, TailraceError):
        internal = InternalError(f"{type(error).__name__}: {error}")
        error.add_note("".join(traceback.format_exception(error)))
        internal.__cause__ = error
        error = internal
    forget_frames(error)
    return error


def again(error: TailraceError) -> TailraceError:
    """Return a copy to raise: a kept error would keep every frame that it passed through."""
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied


def forget_frames(error: BaseException) -> None:
    """Take its traceback from an error that goes no further, and from those that led to it.

    A traceback keeps the frames that the error passed through, with all they hold. A frame, or a task, that
    keeps the error makes a cycle of it, which only the cycle collector finds. Frames that still run are spared.
    """
    found, waiting = set(), [error]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        found.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        waiting += [led for led in (each.__cause__, each.__context__) if led is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
