"""Days, times and moments of columns as the text of their scalars: exact, or an error.

Counts of days, of milli-, micro- or nanoseconds, and texts of the source become ISO 8601::

    Date       2024-02-29
    Timestamp  2024-02-29T13:37:00.250000            nine digits where there are nanoseconds
    Time       13:37:00.250000  26:15:00  -00:30:00  hours may be above 23 and below 0, as in MySQL's TIME

Years are 0001 to 9999. PostgreSQL's infinity is a day far beyond: Debezium sends 9223372036825200000 µs, or the
text +294247-01-10T04:00:00Z. A Time reaches from -838:59:59 to 838:59:59, which is the range of MySQL.

Source: Debezium documentation, PostgreSQL and MySQL connectors, temporal types; MySQL manual, the TIME type.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Final

import msgspec

from tailrace_server.api.graphql.errors import cannot_represent
from tailrace_server.wal.schema.decoding import HOURS, LAST_HOUR, YEARS

_SECONDS: Final = r":[0-5]\d(?::(?:[0-5]\d|60)(?:\.\d{1,12})?)?"
"""Minutes and what is behind them. A leap second is one."""
_CLOCK: Final = rf"(?:(?:[01]\d|2[0-3]){_SECONDS}|24:00(?::00(?:\.0{{1,12}})?)?)"
"""A time of day; 24:00 is the end of it."""
_ZONE: Final = r"(?:Z|[+-][01]\d(?::?[0-5]\d(?::?[0-5]\d)?)?)?"
_DAY: Final = re.compile(r'"(\d{4}-\d\d-\d\d)"', re.ASCII)
_MOMENT: Final = re.compile(rf'"(\d{{4}}-\d\d-\d\d)[T ]({_CLOCK}{_ZONE})"', re.ASCII)
_TIME_OF_DAY: Final = re.compile(rf'"{_CLOCK}{_ZONE}"', re.ASCII)
_SPAN: Final = re.compile(rf'"-?(\d{{2,3}}){_SECONDS}"', re.ASCII)


def written_date(raw: bytes) -> bytes:
    """Return a day that the source wrote as text.

    Raises:
        ValueUnfit: It is no day of the years, or in another form.
    """
    found = _DAY.fullmatch(_text("Date", raw))
    if found is None or not _is_day(found[1]):
        raise cannot_represent("Date", raw, YEARS)
    return found[0].encode()


def written_timestamp(raw: bytes) -> bytes:
    """Return a moment that the source wrote as text; a space before its time becomes a T.

    Raises:
        ValueUnfit: It is no moment of the years, or in another form.
    """
    found = _MOMENT.fullmatch(_text("Timestamp", raw))
    if found is None or not _is_day(found[1]):
        raise cannot_represent("Timestamp", raw, YEARS)
    return f'"{found[1]}T{found[2]}"'.encode()


def written_time(raw: bytes) -> bytes:
    """Return a time that the source wrote as text.

    Raises:
        ValueUnfit: It is no time, beyond the hours, or in another form.
    """
    text = _text("Time", raw)
    if _TIME_OF_DAY.fullmatch(text) is None:
        found = _SPAN.fullmatch(text)
        if found is None or int(found[1]) > LAST_HOUR:
            raise cannot_represent("Time", raw, HOURS)
    return text.encode()


def _text(scalar: str, raw: bytes) -> str:
    """Return a JSON text with its quotes, without the escapes that no character here needs."""
    if raw[:1] != b'"':
        raise cannot_represent(scalar, raw)
    if b"\\" not in raw:
        return raw.decode()
    try:
        return f'"{msgspec.json.decode(raw, type=str)}"'
    except msgspec.DecodeError:
        raise cannot_represent(scalar, raw) from None


@lru_cache(maxsize=4_096)
def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
