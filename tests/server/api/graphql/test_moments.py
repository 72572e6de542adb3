"""Days, times and moments: what is shown is what the source sent, or the column's error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.api.graphql.scalars import written_date, written_time, written_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("convert", "raw", "shown"),
    [
        (written_date, b'"2024-02-29"', None),
        (written_date, b'"2024\\u002d02-29"', b'"2024-02-29"'),
        (written_timestamp, b'"2024-02-29T13:37:00Z"', None),
        (written_timestamp, b'"2024-02-29T13:37:00.123456789+05:45"', None),
        (written_timestamp, b'"1883-11-18T12:03:58-04:56:02"', None),
        (written_timestamp, b'"2016-12-31T23:59:60Z"', None),
        (written_timestamp, b'"2024-02-29 13:37:00.25+00"', b'"2024-02-29T13:37:00.25+00"'),
        (written_time, b'"13:37:00.250000"', None),
        (written_time, b'"24:00:00Z"', None),
        (written_time, b'"13:37:00+15:59"', None),
        (written_time, b'"-838:59:59"', None),
    ],
)
def test_a_written_moment_stays_as_it_is(
    convert: Callable[[bytes], bytes], raw: bytes, shown: bytes | None
) -> None:
    assert convert(raw) == (shown or raw)


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (written_date, "infinity"),
        (written_date, "2024-02-30"),
        (written_date, "0000-01-01"),
        (written_date, "-0044-03-15"),
        (written_date, "+10000-01-01"),
        (written_date, "29/02/2024"),
        (written_timestamp, "-infinity"),
        (written_timestamp, "+294247-01-10T04:00:25.2Z"),
        (written_timestamp, "2024-02-29"),
        (written_timestamp, "2024-02-29T25:00:00"),
        (written_timestamp, "2024-02-29T24:00:01"),
        (written_timestamp, "2024-02-29T13:37:00 Europe/Prague"),
        (written_timestamp, "\N{ARABIC-INDIC DIGIT TWO}024-02-29T13:37:00"),
        (written_time, "839:00:00"),
        (written_time, "26:15:00+01:00"),
        (written_time, "13h37"),
    ],
)
def test_a_written_moment_in_another_form_is_refused(
    convert: Callable[[bytes], bytes], text: str
) -> None:
    with pytest.raises(ValueUnfit, match="cannot represent"):
        convert(f'"{text}"'.encode())


@pytest.mark.parametrize("convert", [written_date, written_timestamp, written_time])
@pytest.mark.parametrize("raw", [b"20240229", b'"\\ud800"', b"null"])
def test_what_is_no_text_is_refused(convert: Callable[[bytes], bytes], raw: bytes) -> None:
    with pytest.raises(ValueUnfit, match="cannot represent"):
        convert(raw)
