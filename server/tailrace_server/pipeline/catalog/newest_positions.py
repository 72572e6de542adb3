"""The newest position and time of each entity type in each log of the source, kept among the source positions.

A change at or above the newest position of its entity type cannot be older than what the log has of its row::

    newest:orders     {"mysql:shop mysql-bin server 1": ["00…07…", 1700000000000000]}

Only what lies below is looked up row by row (`older_rows`). So a late file of one table says nothing about the
rows of another, and memory follows the number of tables, not of rows.

A position is a place in one log of the source: the binlog of one server, the WAL of a PostgreSQL cluster.
Positions of different logs do not compare. The name identifies the log::

    postgresql:shop                        one log for each connector
    mysql:shop mysql-bin server 223344     base name of the binlog, and the server that wrote the change
    mysql:shop mysql-bin                   a snapshot's row, which names no server

A counter may begin anew under its name, as after RESET MASTER or in a restored server. Then the first number of
the position falls while the time rises. A file that comes late has lower times too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace_server.pipeline.input.change import READ, UNPLACED, position_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tailrace_server.pipeline.input.change import Change

_SERVER: Final = " server "
_NUMBER_BYTES: Final = 8


class Placed(NamedTuple):
    """The place of a change in its source, as far as it is known."""

    log: str | None = None
    """Name of the log; None if there is no position."""
    position: bytes = UNPLACED
    time: int | None = None
    """When the source made the change, µs."""
    snapshot: bool = False
    """The row was read, so the time is that of reading: the row may have been changed before or since."""

    @classmethod
    def of(cls, change: Change) -> Placed:
        """Return the place of a change."""
        position = position_bytes(change.place)
        return cls(change.log, position, change.timestamp, change.operation == READ)

    def is_before(self, other: Placed) -> bool | None:
        """Return True if this change is older than the other, False if it is not, None if that is unknown."""
        if self.log is not None and other.log is not None and may_compare(self.log, other.log):
            begins_anew = is_reset(self.position, other.position) and self._is_made_after(other)
            return self.position < other.position and not begins_anew
        if other.snapshot and self._is_made_after(other):
            return False
        if self.time is None or other.time is None or self.snapshot or other.snapshot:
            return None
        return self.time < other.time

    def _is_made_after(self, other: Placed) -> bool:
        """Return True if this change was made after the other was made or read."""
        if self.snapshot or self.time is None or other.time is None:
            return False
        return self.time > other.time


def is_reset(position: bytes, before: bytes) -> bool:
    """Return True if the first number of a position falls, as where a log begins anew under its name."""
    return position[:_NUMBER_BYTES] < before[:_NUMBER_BYTES]


def log_name(connector: str, base: str, server: str | None = None) -> str:
    """Return the name of one of several logs of a connector."""
    return f"{connector} {base}" + (f"{_SERVER}{server}" if server else "")


def base_and_server(log: str) -> tuple[str, str]:
    """Return base name and server of a log whose name `log_name` made; empty where it has none."""
    name, _, server = log.partition(_SERVER)
    return name.partition(" ")[2], server


def logs_in_one_order(logs: Collection[str]) -> dict[str, str]:
    """Return for each log the log that its positions are ordered with.

    That is the log itself. If it names no server, it is that of the only server.
    """
    together = {log: log for log in logs}
    for log in logs:
        servers = [other for other in logs if other != log and may_compare(log, other)]
        if _SERVER not in log and len(servers) == 1:
            together[log] = servers[0]
    return together


def may_compare(one: str, other: str) -> bool:
    """Return True if positions of two logs compare: they are one log, or one of them names no server."""
    if one == other:
        return True
    if (_SERVER in one) == (_SERVER in other):
        return False
    return one.partition(_SERVER)[0] == other.partition(_SERVER)[0]


FIRST, LAST, ENDED, MORE = 1, 2, 4, 8
"""Marks of a snapshot's row: the first and the last of its table, the last of all tables, and any other."""

_NEWEST: Final = "newest:"
_LOGS_MAX: Final = 16
"""Logs of an entity type that are kept: those with the latest times."""


class PositionSpan(NamedTuple):
    """Positions and times of the rows of one entity type in one log of the source."""

    entity_type: str
    log: str
    lowest: bytes
    highest: bytes
    earliest: int | None = None
    """First time of a change, µs; None where none is known. A snapshot's row may have been changed before."""
    latest: int | None = None
    """Last time of a change or of a reading."""
    marks: int = 0
    """Marks of a snapshot's rows, see `snapshots`."""

    def joined(self, other: PositionSpan) -> PositionSpan:
        """Return the span of both; of one entity type and log."""
        earliest = [each for each in (self.earliest, other.earliest) if each is not None]
        return self._replace(
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
            earliest=min(earliest, default=None),
            latest=_later(self.latest, other.latest),
            marks=self.marks | other.marks,
        )


def joined_spans(spans: Iterable[PositionSpan]) -> tuple[PositionSpan, ...]:
    """Return one span for each entity type and log."""
    joined: dict[tuple[str, str], PositionSpan] = {}
    for span in spans:
        key = span.entity_type, span.log
        joined[key] = joined[key].joined(span) if key in joined else span
    return tuple(joined.values())


class _Mark(NamedTuple):
    position: bytes
    time: int | None


class NewestPositions:
    """Those of one catalog. A commit makes new ones."""

    def __init__(self, marks: dict[str, dict[str, _Mark]]) -> None:
        """Take entity type → log → mark."""
        self._marks = marks

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> NewestPositions:
        """Return those among the source positions of a log."""
        return cls(
            {
                name.removeprefix(_NEWEST): _decode(str(text))
                for name, text in source_positions.items()
                if name.startswith(_NEWEST)
            }
        )

    def positions_after(self, before: NewestPositions) -> dict[str, int | str]:
        """Return as source positions those that differ from what was before."""
        return {
            f"{_NEWEST}{entity_type}": msgspec.json.encode(
                {log: (mark.position.hex(), mark.time) for log, mark in marks.items()}
            ).decode()
            for entity_type, marks in self._marks.items()
            if before._marks.get(entity_type) != marks
        }

    def is_below(self, entity_type: str, log: str, position: bytes, time: int | None) -> bool:
        """Return True if a change may be older than the newest one of its entity type."""
        for other, mark in self._marks.get(entity_type, {}).items():
            if may_compare(log, other) and position < mark.position:
                return True
            if log != other and time is not None and mark.time is not None and time < mark.time:
                return True
        return False

    def is_late(self, snapshot: PositionSpan) -> bool:
        """Return True if the log has a newer change of an entity type than a snapshot of it."""
        for log, mark in self._marks.get(snapshot.entity_type, {}).items():
            is_below = snapshot.latest is not None
            if may_compare(snapshot.log, log):
                is_below = snapshot.highest < mark.position
            if is_below and (snapshot.latest or 0) <= (mark.time or 0):
                return True
        return False

    def counts_in(self, entity_type: str, log: str) -> bool:
        """Return True if rows of an entity type have come with positions in a log."""
        return any(may_compare(log, other) for other in self._marks.get(entity_type, ()))

    def after(self, spans: Iterable[PositionSpan]) -> tuple[NewestPositions, bool]:
        """Follow the spans of a plan, given in the order of its versions.

        Returns:
            The newest positions after them, and True if a row may be older than what the log, or the plan
            itself, has of it.
        """
        after = NewestPositions({name: dict(logs) for name, logs in self._marks.items()})
        may_be_older = False
        for span in spans:
            may_be_older |= after.is_below(span.entity_type, span.log, span.lowest, span.earliest)
            after._add(span)
        return after, may_be_older

    def _add(self, span: PositionSpan) -> None:
        logs = self._marks.setdefault(span.entity_type, {})
        mark = logs.get(span.log)
        if mark is None or _begins_anew(span, mark):
            logs[span.log] = _Mark(span.highest, span.latest)
        else:
            highest = max(mark.position, span.highest)
            logs[span.log] = _Mark(highest, _later(mark.time, span.latest))
        if len(logs) > _LOGS_MAX:
            del logs[min(logs, key=lambda log: (log == span.log, logs[log].time or 0))]


def _begins_anew(span: PositionSpan, mark: _Mark) -> bool:
    """Return True if a log begins anew: kept, the old mark would have every row looked up from now on."""
    if span.earliest is None or mark.time is None:
        return False
    return is_reset(span.highest, mark.position) and span.earliest > mark.time


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


def _decode(text: str) -> dict[str, _Mark]:
    found = msgspec.json.decode(text, type=dict[str, tuple[str, int | None]])
    return {log: _Mark(bytes.fromhex(position), time) for log, (position, time) in found.items()}
