"""Errors as values. On the wire: server/api/test_errors.py; their advice: rules/test_errors_page.py."""

from __future__ import annotations

import pickle

import pytest

from tailrace.errors import CursorInvalid, TailraceError
from tests.server.api.test_errors import SAMPLES


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_from_a_worker_whole(error: TailraceError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.figures()) == (str(error), error.figures())
    assert vars(again) == vars(error)


def test_a_long_text_that_is_no_cursor_is_cut() -> None:
    error = CursorInvalid("x" * 1_000_000)
    assert error.figures() == {"cursor": "x" * 100 + "…"}
    assert len(str(error)) < 300
