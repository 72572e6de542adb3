"""Errors as values. On the wire: server/api/test_errors.py; their advice: rules/test_errors_page.py."""

from __future__ import annotations

import pickle
import weakref
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CursorInvalid, InternalError, TailraceError, again, forget_frames, kept
from tailrace.errors.requests import nearest
from tests.server.api.test_errors import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_from_a_worker_whole(error: TailraceError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.figures()) == (str(error), error.figures())
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_a_copy_says_the_same_and_keeps_none_of_the_frames(error: TailraceError) -> None:
    cause = OSError("disk")
    with pytest.raises(TailraceError) as caught:
        raise error from cause
    copied = again(caught.value)
    assert error.__traceback__ is not None
    assert copied is not error
    assert copied.__traceback__ is None
    assert copied.__cause__ is cause
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("prise", ("price", "stock"), "; did you mean price?"),
        ("STOCK", ("price", "stock"), "; did you mean stock?"),
        ("prices", ("price_of_one", "price"), "; did you mean price?"),
        ("zzz", ("price", "stock"), "; known: price, stock"),
        (
            "zzz",
            (f"c{n:02}" for n in range(21)),
            f"; known: {', '.join(f'c{n:02}' for n in range(20))}, …",
        ),
        ("zzz", (), "; none is known yet"),
    ],
)
def test_an_unknown_name_is_answered_with_the_most_similar_or_a_bounded_list(
    name: str, known: Iterable[str], hint: str
) -> None:
    assert nearest(name, known) == hint


class Held:
    """What a frame holds."""


def fails(held: Held) -> None:
    raise KeyError("key")


def test_an_error_that_is_kept_keeps_no_frames_and_of_a_bug_the_lines() -> None:
    """Nor do those that led to it: a group's, a cause, a context."""
    held = Held()
    reference = weakref.ref(held)
    try:
        try:
            fails(held)
        except KeyError as error:
            raise ExceptionGroup("several", [error, ValueError()]) from error
    except ExceptionGroup as group:
        found = kept(group)
    assert isinstance(found, InternalError)
    del held
    assert reference() is None
    assert found.__cause__ is not None
    (note,) = found.__cause__.__notes__
    assert "in fails" in note


def test_frames_that_still_run_keep_what_they_hold() -> None:
    held = Held()
    with pytest.raises(KeyError) as caught:
        fails(held)
    forget_frames(caught.value)
    assert caught.value.__traceback__ is None
    assert type(held) is Held


def test_a_long_text_that_is_no_cursor_is_cut() -> None:
    error = CursorInvalid("x" * 1_000_000)
    assert error.figures() == {"cursor": "x" * 100 + "…"}
    assert len(str(error)) < 300
