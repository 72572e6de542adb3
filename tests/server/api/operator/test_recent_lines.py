"""The warnings and errors that the page shows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from tailrace_server import logging_setup
from tailrace_server.api.operator import RecentLines
from tailrace_server.api.operator.recent_lines import _LINES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def lines() -> Iterator[RecentLines]:
    """Return what listens to the log of this process, set up as a server's is."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    logging_setup.configure("debug", "json")
    try:
        with RecentLines() as lines:
            yield lines
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**configured)


def test_warnings_and_errors_are_kept_with_their_fields_the_newest_first(
    lines: RecentLines,
) -> None:
    log = structlog.get_logger("tailrace.test")
    log.info("nothing to see")
    log.warning("log root unreadable", error="no such folder", tries=3)
    logging.getLogger("other").error("of a library: %s", "x" * 1_000)
    library, ours = lines.newest_first()
    assert (ours.level, ours.logger, ours.event) == (
        "warning",
        "tailrace.test",
        "log root unreadable",
    )
    assert ours.fields == {"error": "no such folder", "tries": "3"}
    assert library.event.startswith("of a library: xxx")
    assert len(library.event) == 300


def test_of_an_exception_its_text_is_kept_and_no_traceback(lines: RecentLines) -> None:
    log = structlog.get_logger("tailrace.test")
    try:
        raise ValueError("what went wrong")
    except ValueError:
        log.exception("log root not followed")
    [line] = lines.newest_first()
    assert line.fields == {"error": "ValueError: what went wrong"}


def test_a_flood_of_one_kind_is_one_line_and_many_kinds_are_bounded(lines: RecentLines) -> None:
    log = structlog.get_logger("tailrace.test")
    for number in range(2 * _LINES_MAX):
        log.warning("first", number=number)
    for _ in range(1_000):
        log.warning("again", subject="shop")
    found = lines.newest_first()
    assert len(found) == _LINES_MAX
    assert (found[0].event, found[0].times) == ("again", 1_000)
    assert found[1].fields == {"number": str(2 * _LINES_MAX - 1)}


def test_nothing_is_heard_after_the_block(lines: RecentLines) -> None:
    with RecentLines() as other:
        pass
    structlog.get_logger("tailrace.test").warning("told")
    assert [each.event for each in lines.newest_first()] == ["told"]
    assert other.newest_first() == []
