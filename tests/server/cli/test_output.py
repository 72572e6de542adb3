"""What goes to a terminal: colours only where somebody sees them, and no control characters of the data."""

from __future__ import annotations

import io

import pytest

from tailrace_server.cli.output import Palette, printable


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
