"""The places that ``tailrace subscription`` takes; the commands: tests/process/test_named_subscription.py."""

from __future__ import annotations

from datetime import datetime

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.cli.subscription import ResetOptions
from tests.server.cli.command_line import made


@pytest.mark.parametrize("text", ["earliest", "latest", "0", "41", "41:3", "20260504"])
def test_words_and_positions_reach_the_server_as_they_are_written(text: str) -> None:
    assert made(ResetOptions, to=text).to == text


@pytest.mark.parametrize(
    "text", ["2026-05-04T10:30", "2026-05-04", "2026-W19-1", "15m", "1.5h", "1700000000000000"]
)
def test_times_reach_the_server_with_a_zone(text: str) -> None:
    assert datetime.fromisoformat(made(ResetOptions, to=text).to).tzinfo is not None


@pytest.mark.parametrize("text", ["soon", "-1", "1:2:3", "", "99999999999d"])
def test_other_texts_are_refused_with_every_form_of_a_place(text: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^--to .* is not a position; write earliest, latest, VERS"
    ):
        made(ResetOptions, to=text)
