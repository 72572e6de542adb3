"""docs/protocol.md says what the code does: parameters and cursors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from uuid import UUID

import pytest

from tailrace import Client, Criteria
from tailrace.cursor import Cursor
from tailrace.errors import CursorInvalid
from tools import parameters

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def test_the_parameters_are_those_of_the_contract() -> None:
    parameters.main(["--check"])


def test_parameters_that_python_calls_otherwise_are_arguments_of_the_client() -> None:
    calls = (Client.subscribe, Client.read_changes, Client.state, Criteria)
    known = {name for call in calls for name in inspect.signature(call).parameters}
    assert set(parameters.PYTHON.values()) <= known


def test_cursors_of_the_page_are_written_and_read_as_it_says() -> None:
    rows = re.findall(
        rf"^\| ({_UUID}) \| (\d+) \| (\d+) \| (\d+) \| `(.+?)` \|", PAGE.read_text(), re.M
    )
    assert len(rows) == 6
    for uuid, version, index, ordinal, text in rows:
        cursor = Cursor(UUID(uuid), int(version), int(index), int(ordinal))
        assert Cursor.parse(text) == cursor
        assert str(Cursor.parse(text)) == text


def test_what_the_page_refuses_is_refused() -> None:
    section = PAGE.read_text().partition("Not cursors")[2].partition("## Starts")[0]
    texts = re.findall(r"^\| `(.*?)` \|", section, re.M)
    assert len(texts) == 11
    for text in texts:
        with pytest.raises(CursorInvalid):
            Cursor.parse(text)
