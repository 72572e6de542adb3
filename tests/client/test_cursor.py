"""Cursors as values. Their text on every transport: tests/conformance and tests/rules/test_protocol_page.py."""

from __future__ import annotations

from uuid import UUID

import pytest

from tailrace import END, Cursor, Position
from tailrace.cursor import StateCursor
from tailrace.errors import CursorInvalid

LOG = UUID("6f1c2a5e-0b0e-4d4f-9c39-5d3f6a1b2c3d")


@pytest.mark.parametrize(
    "cursor",
    [
        Cursor(LOG, 0, END, commit_timestamp=0),
        Cursor(LOG, 41, 7, 3),
        Cursor(LOG, 1, 0, 0, 1_700_000_000_000_000),
    ],
)
def test_the_text_of_a_cursor_reads_back_equal(cursor: Cursor) -> None:
    found = Cursor.parse(str(cursor))
    assert (found, found.commit_timestamp) == (cursor, cursor.commit_timestamp)


def test_cursors_of_one_place_are_equal_whatever_is_known_of_its_commit() -> None:
    assert Cursor(LOG, 41, 7, 3, 1_700_000_000_000_000) == Cursor(LOG, 41, 7, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"2.{LOG.hex}.1.0.0",
        f"1.{LOG}.1.0.0",
        f"1.{LOG.hex}.01.0.0",
        f"1.{LOG.hex}.1.0",
        f"1.{LOG.hex}.1.0.{END + 1}",
        f"1.{LOG.hex}.\u0661.0.0",
        f"1.{LOG.hex}.1.0.0.",
        f"1.{LOG.hex}.1.0.0.{2**63}",
    ],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalid):
        Cursor.parse(text)


def test_cursors_around_a_position_exclude_and_include_its_record() -> None:
    position = Position(41, 7)
    before, past = Cursor.before(LOG, position), Cursor.past(LOG, position)
    assert before.position == Position(41, 6)
    assert past.position == position
    assert before < Cursor(LOG, 41, 7, 0) < past


STATE = StateCursor.begin(Cursor(LOG, 41, END, END, 1_700_000_000_000_000), ("order", "product"))


@pytest.mark.parametrize("key", ["", "17", "ключ", "k" * 600, "k" * 601])
def test_a_place_in_a_state_reads_back_equal(key: str) -> None:
    for cursor in (STATE, STATE.behind("product", key, 3)):
        found = Cursor.parse(str(cursor))
        assert found == cursor
        assert str(found) == str(cursor)
        assert len(str(found)) < 1_000
    assert found.position == Position(41, END)
    assert isinstance(found, StateCursor)
    assert found.row is not None
    assert found.row.is_of_key(key)
    assert not found.row.is_of_key(f"{key}x")
    assert found.behind_state() == Cursor(LOG, 41, END)
    unknown = StateCursor.begin(Cursor(LOG, 41, END), ("order",)).behind("order", key)
    assert Cursor.parse(str(unknown)) == unknown


@pytest.mark.parametrize("end", ["x", ".", ".0.0.k", f".{'a' * 16}.0", f".{'a' * 16}.0.k*"])
def test_another_text_of_a_place_in_a_state_is_refused(end: str) -> None:
    with pytest.raises(CursorInvalid):
        Cursor.parse(f"{STATE}{end}")
