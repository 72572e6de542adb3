"""docs/protocol.md says what the code does: cursors."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.cursor import Cursor
from tailrace.errors import CursorInvalid

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


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
