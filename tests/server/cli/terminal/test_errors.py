"""Exit statuses and the one line of an error. Real commands: tests/process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest, LogUnreadable, TransportError
from tailrace_server.cli.terminal.errors import BUG, DONE, FAILED, INTERRUPTED, REFUSED, guarded
from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Callable


def raising(error: BaseException) -> Callable[[], object]:
    def run() -> object:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InvalidRequest("give one\nof them"), REFUSED, "error: give one of them"),
        (CannotStart("no log root"), REFUSED, "error: no log root"),
        (LogUnreadable("x: no log"), REFUSED, "error: x: no log"),
        (PermissionError(13, "Permission denied", "/x"), REFUSED, "error: /x: Permission denied"),
        (TransportError("cannot reach it"), FAILED, "error: cannot reach it"),
        (FileNotFoundError(2, "No such file", "/y"), FAILED, "error: /y: No such file"),
        (ExceptionGroup("group", [TransportError("lost")]), FAILED, "error: lost"),
        (KeyError("k"), BUG, "error: internal error: KeyError: 'k'"),
    ],
)
def test_an_error_becomes_a_status_and_one_line(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(raising(error)) == status
    assert capsys.readouterr().err.startswith(line)


def test_a_command_that_ends_by_itself_says_how() -> None:
    assert guarded(lambda: None) == DONE
    assert guarded(lambda: 3) == 3
    assert guarded(raising(KeyboardInterrupt())) == INTERRUPTED


def test_a_traceback_is_shown_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_TRACEBACK", "1")
    with pytest.raises(KeyError):
        guarded(raising(KeyError("k")))
