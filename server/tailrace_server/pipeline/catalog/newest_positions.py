"""The newest position and time of each entity type in each log of the source, stored in the source positions.

They find changes that arrive out of order: a change at or above the newest position of its entity type cannot
be older than the last change of its row in tailrace's log::

    newest:orders     {"mysql:shop mysql-bin server 1": ["00…07…", 1700000000000000]}

Only the rows of changes below that position are looked up (`older_rows`). So a late file of one table does not
affect other tables, and memory is proportional to the number of tables, not of rows.

A position is a place in one log of the source, such as the binlog of one server or the WAL of a PostgreSQL
cluster. Positions of different logs are not comparable. The name identifies the log::

    postgresql:shop                        one log for each connector
    mysql:shop mysql-bin server 223344     base name of the binlog, and the server that wrote the change
    mysql:shop mysql-bin                   a snapshot's row, which names no server

A log may begin again under the same name, for example after RESET MASTER or on a restored server. Then the
first number of the position decreases while the time increases. In a file that arrives late, the times are
lower, too.
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
    """The position and time of a change in its source, as far as they are known."""

    log: str | None = None
    """Name of the source's log; None if there is no position."""
    position: bytes = UNPLACED
    time: int | None = None
    """Time at which the source made the change, in microseconds; None if unknown."""
    snapshot: bool = False
    """True for a row of a snapshot. Its time is the time of reading; the row was last changed before that."""

    @classmethod
    def of(cls, change: Change) -> Placed:
        """Return the position and time of a change."""
        position = position_bytes(change.place)
        return cls(change.log, position, change.timestamp, change.operation == READ)

    def is_before(self, other: Placed) -> bool | None:
        """Return True if this change is older than the other, False if it is not, None if that is unknown."""
        if self.log is not None and other.log is not None and may_compare(self.log, other.log):
            # A lower position at a later time means that the log began again: that change is not older.
            begins_anew = is_reset(self.position, other.position) and self._is_made_after(other)
            return self.position < other.position and not begins_anew
        # Positions are not comparable, so only times are left. A row of a snapshot was changed at an unknown
        # time before it was read: a change made after the reading is newer, anything else is unknown.
        if other.snapshot and self._is_made_after(other):
            return False
        if self.time is None or other.time is None or self.snapshot or other.snapshot:
            return None
        return self.time < other.time

    def _is_made_after(self, other: Placed) -> bool:
        """Return True if this change was certainly made after the other change was made or read."""
        if self.snapshot or self.time is None or other.time is None:
            return False
        return self.time > other.time


def is_reset(position: bytes, before: bytes) -> bool:
    """Return True if the first number of a position is lower than before, as after a reset of the log."""
    return position[:_NUMBER_BYTES] < before[:_NUMBER_BYTES]


def log_name(connector: str, base: str, server: str | None = None) -> str:
    """Return the name of a log of a connector that has several, from the log's base name and its server."""
    return f"{connector} {base}" + (f"{_SERVER}{server}" if server else "")


def base_and_server(log: str) -> tuple[str, str]:
    """Return base name and server from a name made by `log_name`; each is empty if the name lacks it."""
    name, _, server = log.partition(_SERVER)
    return name.partition(" ")[2], server


def logs_in_one_order(logs: Collection[str]) -> dict[str, str]:
    """Return a map from each log to the log whose positions are in one order with its own.

    A log maps to itself. A log without a server maps to the log with a server, if there is exactly one.
    """
    together = {log: log for log in logs}
    for log in logs:
        servers = [other for other in logs if other != log and may_compare(log, other)]
        if _SERVER not in log and len(servers) == 1:
            together[log] = servers[0]
    return together


def may_compare(one: str, other: str) -> bool:
    """Return True if positions of two logs are comparable: equal logs, or only one of them names a server."""
    if one == other:
        return True
    if (_SERVER in one) == (_SERVER in other):
        return False
    return one.partition(_SERVER)[0] == other.partition(_SERVER)[0]


FIRST, LAST, ENDED, MORE = 1, 2, 4, 8
"""Marks of a snapshot row (bit flags): first row of its table, last row of its table, last row of the whole
snapshot, any other row."""

_NEWEST: Final = "newest:"
_LOGS_MAX: Final = 16
"""Maximum number of logs stored for an entity type: those with the latest times."""


class PositionSpan(NamedTuple):
    """The range of positions and times of some rows of one entity type in one log of the source."""

    entity_type: str
    log: str
    lowest: bytes
    highest: bytes
    earliest: int | None = None
    """Earliest time of a change, in microseconds; None if unknown. Snapshot rows do not count, because their
    changes are older than their times."""
    latest: int | None = None
    """Latest time of a change or of reading a snapshot row, in microseconds; None if unknown."""
    marks: int = 0
    """The marks of all snapshot rows, joined by OR; see `snapshots`."""

    def joined(self, other: PositionSpan) -> PositionSpan:
        """Return the span that covers both spans, which are of the same entity type and log."""
        earliest = [each for each in (self.earliest, other.earliest) if each is not None]
        return self._replace(
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
            earliest=min(earliest, default=None),
            latest=_later(self.latest, other.latest),
            marks=self.marks | other.marks,
        )


def joined_spans(spans: Iterable[PositionSpan]) -> tuple[PositionSpan, ...]:
    """Join spans to one span for each pair of entity type and log."""
    joined: dict[tuple[str, str], PositionSpan] = {}
    for span in spans:
        key = span.entity_type, span.log
        joined[key] = joined[key].joined(span) if key in joined else span
    return tuple(joined.values())


class _Mark(NamedTuple):
    position: bytes
    time: int | None


class NewestPositions:
    """The newest positions of one catalog. Immutable; each commit makes a new object."""

    def __init__(self, marks: dict[str, dict[str, _Mark]]) -> None:
        """Store a map: entity type → log → newest position and time."""
        self._marks = marks

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> NewestPositions:
        """Return the newest positions that are stored in the source positions of a log."""
        return cls(
            {
                name.removeprefix(_NEWEST): _decode(str(text))
                for name, text in source_positions.items()
                if name.startswith(_NEWEST)
            }
        )

    def positions_after(self, before: NewestPositions) -> dict[str, int | str]:
        """Return the source positions of the entries that differ from those in ``before``."""
        return {
            f"{_NEWEST}{entity_type}": msgspec.json.encode(
                {log: (mark.position.hex(), mark.time) for log, mark in marks.items()}
            ).decode()
            for entity_type, marks in self._marks.items()
            if before._marks.get(entity_type) != marks
        }

    def is_below(self, entity_type: str, log: str, position: bytes, time: int | None) -> bool:
        """Return True if a change may be older than the newest change of its entity type."""
        for other, mark in self._marks.get(entity_type, {}).items():
            if may_compare(log, other) and position < mark.position:
                return True
            # Another log: positions say nothing, so an earlier time is enough to look the row up.
            if log != other and time is not None and mark.time is not None and time < mark.time:
                return True
        return False

    def is_late(self, snapshot: PositionSpan) -> bool:
        """Return True if tailrace's log has a newer change of the snapshot's entity type than the snapshot."""
        for log, mark in self._marks.get(snapshot.entity_type, {}).items():
            is_below = snapshot.latest is not None
            if may_compare(snapshot.log, log):
                is_below = snapshot.highest < mark.position
            if is_below and (snapshot.latest or 0) <= (mark.time or 0):
                return True
        return False

    def counts_in(self, entity_type: str, log: str) -> bool:
        """Return True if rows of an entity type have arrived with positions in a log of the source."""
        return any(may_compare(log, other) for other in self._marks.get(entity_type, ()))

    def after(self, spans: Iterable[PositionSpan]) -> tuple[NewestPositions, bool]:
        """Return the newest positions after a plan, given its spans in the order of its versions.

        Returns:
            The newest positions, and True if a row of the plan may be older than another change of the same row
            in the log or in the plan.
        """
        after = NewestPositions({name: dict(logs) for name, logs in self._marks.items()})
        may_be_older = False
        # Check each span against the positions with the earlier spans of the plan, not only with the log's.
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
        # Bound the number of logs, but never drop the one that was just added.
        if len(logs) > _LOGS_MAX:
            del logs[min(logs, key=lambda log: (log == span.log, logs[log].time or 0))]


def _begins_anew(span: PositionSpan, mark: _Mark) -> bool:
    """Return True if the source's log began again after a mark.

    The mark must then be replaced. Otherwise every row would be below it, and would be looked up from now on.
    """
    if span.earliest is None or mark.time is None:
        return False
    return is_reset(span.highest, mark.position) and span.earliest > mark.time


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


def _decode(text: str) -> dict[str, _Mark]:
    found = msgspec.json.decode(text, type=dict[str, tuple[str, int | None]])
    return {log: _Mark(bytes.fromhex(position), time) for log, (position, time) in found.items()}
