"""Division of a stream of captures into whole versions, without I/O.

The lead record of a version has its number of records per table. A version is whole when so many records of the
table have come. Two cases have no usable count: the caller has no grant for the counts, or a condition filters
out records. Then the first capture of a later version, or a heartbeat, shows that the version is whole.
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
    """Captures to apply together, and the end of their version if it is whole."""

    captures: list[Capture]
    """Changes of rows, all in one version; possibly empty."""
    cursor: Cursor | None
    """Cursor at the end of the version if these captures complete it; None if more of them will come."""


def criteria_of_table(rows: Criteria) -> tuple[Criteria, ...]:
    """Return the criteria of a table's subscription: its rows, changes of its schema, and lead records."""
    return (
        rows,
        Criteria(area=Area.SCHEMA, entity_type=rows.entity_type),
        Criteria(area=Area.INFRASTRUCTURE),
    )


def check_size(entity_type: str, key: str | None, position: Position, omitted_bytes: int) -> None:
    """Check that the image of a row was not left out for its size.

    Raises:
        InvalidRequest: The row exceeds the maximum size of a message.
    """
    if omitted_bytes:
        raise InvalidRequest(
            f"row {key!r} of {entity_type!r} has {omitted_bytes} bytes at {position}, more than "
            "fit a message; a table cannot contain such a row"
        )


class VersionFold:
    """Divides the captures of a subscription with `criteria_of_table` into whole versions."""

    def __init__(
        self, catalog: str, entity_type: str, cursor: Cursor, dropped: set[int] | None = None
    ) -> None:
        """Begin after a whole version.

        Args:
            catalog: Name of the catalog.
            entity_type: Name of the table.
            cursor: Cursor at the end of the last whole version.
            dropped: Ids of the dropped columns that an earlier fold has seen; this fold updates the set.
        """
        self._dropped: set[int] = set() if dropped is None else dropped
        self._catalog = catalog
        self._entity_type = entity_type
        self._whole = cursor
        self._last: Capture | None = None
        """Last capture of the incomplete version; None: there is no such version."""
        self._expected: int | None = None
        """Number of the table's records in the incomplete version; None: unknown."""
        self._came = 0
        """Number of the table's records that have come in the incomplete version."""

    def take(self, message: tuple[Capture, ...] | Heartbeat) -> list[Step]:
        """Return the steps to apply after a message.

        Raises:
            TailraceError: The table cannot be followed any longer.
        """
        if isinstance(message, Heartbeat):
            return self._passed(message.cursor)
        steps: list[Step] = []
        captures: list[Capture] = []
        for each in message:
            # 1. The first capture of another version shows that the version before it is whole.
            if self._last is not None and each.version != self._last.version:
                steps.append(self._finished(captures))
                captures = []
            if each.version <= self._whole.version:
                raise SubscriptionBroken(
                    f"version {each.version} continues after all captures that its lead counts",
                    str(self._whole),
                )
            # 2. The lead record comes first. It counts row changes and schema changes, so both are counted
            # here.
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
            # 3. The version is whole with the last counted record: no need to wait for the next version.
            if self._expected is not None and self._came >= self._expected:
                steps.append(self._finished(captures))
                captures = []
        if captures:
            steps.append(Step(captures, None))
        return steps

    def _passed(self, cursor: Cursor) -> list[Step]:
        """Return the steps for a heartbeat: the end of the incomplete version, and of versions without rows."""
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
        """Return the number of the table's records that a lead record announces; None if it does not say."""
        if lead.after is None:
            return None
        document = json.loads(lead.after)
        counts = document.get("counts", {})
        if self._entity_type in counts:
            return int(counts[self._entity_type])
        # Without a grant for all tables the lead record lacks some counts, and then it lacks their sum, too. So
        # a table without a count has 0 records only if the sum is there.
        return 0 if "mutation_count" in document else None

    def _check_name(self, record: Capture) -> None:
        if record.after is None:
            return
        name = json.loads(record.after).get("entity_type", self._entity_type)
        if name != self._entity_type:
            raise EntityTypeUnknown(self._catalog, self._entity_type, (name,))

    def _check_columns(self, record: Capture) -> None:
        """Raise `ColumnsChanged` if a column was dropped or restored, so that the rows are read anew.

        After a drop, unchanged rows in this table would still have its values. After a restore, the rows that
        were read in between would lack them.
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
