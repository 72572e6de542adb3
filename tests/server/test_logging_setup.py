"""The form of log lines. Which events there are is tested beside what logs them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from tailrace_server import logging_setup

if TYPE_CHECKING:
    from collections.abc import Iterator

UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.access")


@pytest.fixture(autouse=True)
def process_logging() -> Iterator[None]:
    """Leave the logging of the test process as it was."""
    loggers = [logging.getLogger(name) for name in (None, *UVICORN)]
    levels, handlers = [logger.level for logger in loggers], loggers[0].handlers[:]
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_our_events_and_those_of_libraries_leave_in_one_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging_setup.configure()
    structlog.get_logger("tailrace.test").info("catalog opened", catalog="größe", rows=3)
    logging.getLogger("library").warning("no %s", "room")
    ours, foreign = lines(capsys)
    assert ours.pop("timestamp").endswith("Z")
    assert ours == {
        "event": "catalog opened",
        "catalog": "größe",
        "rows": 3,
        "level": "info",
        "logger": "tailrace.test",
    }
    assert foreign.pop("timestamp").endswith("Z")
    assert foreign == {"event": "no room", "level": "warning", "logger": "library"}


def test_nothing_below_the_level_is_written_and_only_warnings_of_uvicorn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logging_setup.configure("debug")
    structlog.get_logger("tailrace.test").debug("shown")
    for name in UVICORN:
        # A server that ran in this process before has left its access log without a way up.
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        logging.getLogger(name).info("hidden")
        logging.getLogger(name).warning("shown")
    assert [line["event"] for line in lines(capsys)] == ["shown"] * 4
    logging_setup.configure("error")
    structlog.get_logger("tailrace.test").warning("hidden")
    logging.getLogger("uvicorn").warning("hidden")
    assert lines(capsys) == []


def test_a_traceback_stays_on_the_line_of_its_event(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure()
    try:
        raise KeyError("lost")
    except KeyError:
        structlog.get_logger("tailrace.test").exception("it failed")
    (line,) = lines(capsys)
    assert line["level"] == "error"
    assert line["exception"].endswith("KeyError: 'lost'")


def test_the_form_for_reading_has_no_colours_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging_setup.configure(format="console")
    structlog.get_logger("tailrace.test").info("catalog opened", rows=3)
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert "rows=3" in text
    assert "catalog opened" in text


def test_a_caller_sends_the_terminal_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging_setup.configure(format="console")
    structlog.get_logger("tailrace.test").info("refused", host="a\x1b[31mred\x9b2J\nnext")
    text = capsys.readouterr().err
    assert r"a\x1b[31mred\x9b2J\nnext" in text
    assert text.count("\n") == 1
