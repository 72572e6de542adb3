"""Captures cut into whole versions, without I/O.

A version is whole when as many records of the table have come as its lead counts. If the lead does not say so,
because its counts are not granted, the next version or a heartbeat does. So it is, too, where a condition lets
fewer records come than the lead counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from tailrace.capture import Heartbeat
from tailrace.criteria import Area, Criteria, Operation
from tailrace.cursor import Cursor
from tailrace.errors import ColumnsChanged, EntityTypeUnknown, InvalidRequest, SubscriptionBroken
from tailrace.position import END

if TYPE_CHECKING:
    from tailrace.capture import Capture
    from tailrace.position import Position


class Step(NamedTuple):
    """Captures to apply, and what is whole then."""

    captures: list[Capture]
    """Of one version, changes of rows."""
    cursor: Cursor | None
    """Behind the version that is whole with them; None: more of it is to come."""


def criteria_of_table(rows: Criteria) -> tuple[Criteria, ...]:
    """Return what a table of some rows follows: them, changes of their columns, and the leads, which count."""
    return (
        rows,
        Criteria(area=Area.SCHEMA, entity_type=rows.entity_type),
        Criteria(area=Area.INFRASTRUCTURE),
    )


def check_size(entity_type: str, key: str | None, position: Position, omitted_bytes: int) -> None:
    """Refuse a row that came without its image, as it is too large.

    Raises:
        InvalidRequest: It did.
    """
    if omitted_bytes:
        raise InvalidRequest(
            f"row {key!r} of {entity_type!r} has {omitted_bytes} bytes at {position}, more than a message may "
            "have: such a row has no place in a table"
        )


class VersionFold:
    """Cuts what a subscription by `criteria_of_table` brings into whole versions."""

    def __init__(
        self, catalog: str, entity_type: str, cursor: Cursor, dropped: set[int] | None = None
    ) -> None:
        """Begin behind a whole version; ``dropped`` has the ids of dropped columns that an earlier fold saw."""
        self._dropped: set[int] = set() if dropped is None else dropped
        self._catalog = catalog
        self._entity_type = entity_type
        self._whole = cursor
        self._last: Capture | None = None
        """Of the version under way; None: none is."""
        self._expected: int | None = None
        """The number of the table's records in it; None: unknown."""
        self._came = 0

    def take(self, message: tuple[Capture, ...] | Heartbeat) -> list[Step]:
        """Return the steps that a message makes possible.

        Raises:
            TailraceError: The table cannot be followed any more.
        """
        if isinstance(message, Heartbeat):
            return self._passed(message.cursor)
        steps: list[Step] = []
        captures: list[Capture] = []
        for each in message:
            # 1. The first capture of another version says that the one before is whole.
            if self._last is not None and each.version != self._last.version:
                steps.append(self._finished(captures))
                captures = []
            if each.version <= self._whole.version:
                raise SubscriptionBroken(
                    f"version {each.version} goes on, though all that its lead counts had come",
                    str(self._whole),
                )
            # 2. The lead comes first; what it counts are rows, and changes of the columns.
            self._last = each
            if each.operation is Operation.TRANSACTION:
                self._expected = self._counted(each)
            else:
                self._came += 1
                if each.area is Area.DATA:
                    check_size(
                        self._entity_type, each.primary_key, each.position, each.omitted_bytes
                    )
                    captures.append(each)
                else:
                    self._check_name(each)
                    self._check_columns(each)
            # 3. With the last one that it counts the version is whole at once.
            if self._expected is not None and self._came >= self._expected:
                steps.append(self._finished(captures))
                captures = []
        if captures:
            steps.append(Step(captures, None))
        return steps

    def _passed(self, cursor: Cursor) -> list[Step]:
        steps: list[Step] = []
        if self._last is not None and cursor.version > self._last.version:
            steps.append(self._finished([]))
        if cursor.index == END and cursor.version > self._whole.version:
            self._begin_next(cursor)
            steps.append(Step([], cursor))
        return steps

    def _finished(self, captures: list[Capture]) -> Step:
        last = self._last
        assert last is not None
        self._begin_next(
            Cursor(last.catalog_uuid, last.version, END, commit_timestamp=last.commit_timestamp)
        )
        return Step(captures, self._whole)

    def _begin_next(self, whole: Cursor) -> None:
        self._whole, self._last, self._expected, self._came = whole, None, None, 0

    def _counted(self, lead: Capture) -> int | None:
        if lead.after is None:
            return None
        document = json.loads(lead.after)
        counts = document.get("counts", {})
        if self._entity_type in counts:
            return int(counts[self._entity_type])
        # Counts of what is not granted are left out, and then there is no sum of them.
        return 0 if "mutation_count" in document else None

    def _check_name(self, record: Capture) -> None:
        if record.after is None:
            return
        name = json.loads(record.after).get("entity_type", self._entity_type)
        if name != self._entity_type:
            raise EntityTypeUnknown(self._catalog, self._entity_type, (name,))

    def _check_columns(self, record: Capture) -> None:
        """Refuse to continue behind a dropped column: rows that have not changed still have its values.

        A column that is restored has them again, and the rows that were read meanwhile lack them.
        """
        columns = () if record.after is None else json.loads(record.after).get("columns", ())
        for each in columns:
            is_changed = each["name"] in (record.changed or ())
            was_dropped = each["id"] in self._dropped
            is_dropped = each.get("dropped", False)
            if is_dropped:
                self._dropped.add(each["id"])
            else:
                self._dropped.discard(each["id"])
            if is_changed and is_dropped != was_dropped:
                how = "dropped" if is_dropped else "restored"
                reason = f"was {how} in version {record.version}"
                raise ColumnsChanged(self._entity_type, each["name"], reason)
