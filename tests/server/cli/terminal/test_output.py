"""What goes to a terminal: colours only where somebody sees them, and no control characters of the data."""

from __future__ import annotations

import io

import pytest

from tailrace_server.cli.terminal.output import Palette, clock_text, date_text, day_text, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "terminal", "enabled"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
    ],
)
def test_colours_are_for_terminals_unless_the_environment_says_otherwise(
    environment: dict[str, str], terminal: bool, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    palette = Palette.of(Terminal() if terminal else io.StringIO())
    assert palette.enabled is enabled
    assert (palette.error("x") == "x") is not enabled


def test_what_a_terminal_would_obey_is_written_as_an_escape() -> None:
    assert printable("plain é 漢") == "plain é 漢"
    assert printable("a\x1b[2Jb\u202ec\n") == "a\\u001b[2Jb\\u202ec\\u000a"


def test_a_commit_time_keeps_its_milliseconds() -> None:
    assert clock_text(1_700_000_000_123_999).endswith(":20.123")


def test_a_commit_time_beyond_the_calendar_is_its_number() -> None:
    """A source may write any: one line with such a time ends no command."""
    for text in (clock_text, day_text, date_text):
        assert text(2**63 - 1) == "9223372036854775807 µs"
        assert text(-(2**63)) == "-9223372036854775808 µs"
