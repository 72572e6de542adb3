"""The stored rows of a live table, which change by whole versions; here in memory, in `sqlite` in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.criteria import Operation, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.capture import Capture
    from tailrace.cursor import Cursor
    from tailrace.reads.state import StateRow
    from tailrace.table.fold import Step
    from tailrace.typed.row_reader import RowReader


class StoredRow(NamedTuple):
    """A row as the table stores it."""

    image: bytes | None
    """Image of the row; None if the source sent none."""
    reader: RowReader | None
    """Converter of the image to Python values; None if the table returns images."""

    def value(self) -> dict[str, Any] | bytes | None:
        """Return the row as the table returns it: values by column, or the image; None without an image.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value.
        """
        if self.image is None or self.reader is None:
            return self.image
        return self.reader.read(self.image)


def row_after(capture: Capture) -> StoredRow | None:
    """Return the row after a change; None if it was removed, or may not meet the table's condition."""
    is_out = capture.transition in (Transition.LEAVE, Transition.UNKNOWN)
    if capture.operation is Operation.UPSERT and not is_out:
        return StoredRow(capture.after, capture.reader)
    return None


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change of one row of a table, or a truncate, which removes all rows."""

    version: int
    primary_key: str | None
    """Canonical text of the row's key; None for a truncate. A truncate has no changes of single rows."""
    old: StoredRow | None
    """The row before the change; None if the table did not have it."""
    new: StoredRow | None
    """The row after the change; None if the table does not have it any more."""
    operation: Operation
    """The operation of the source. An ``UPSERT`` with ``new`` None is a row that exists in the source, but does
    not meet the table's condition any more."""

    @property
    def transition(self) -> Transition | None:
        """How the row moved into or out of this table; None for a truncate.

        It is exact even if the source sent no before-image, since it compares the rows of this table.
        """
        if self.primary_key is None:
            return None
        if self.new is None:
            return Transition.LEAVE
        return Transition.ENTER if self.old is None else Transition.UPDATE

    @property
    def before(self) -> Any:
        """The row before the change, as `StoredRow.value`; None if there was none. Raises ValueNotHeld."""
        return None if self.old is None else self.old.value()

    @property
    def after(self) -> Any:
        """The row after the change, as `StoredRow.value`; None if there is none. Raises ValueNotHeld."""
        return None if self.new is None else self.new.value()


class ChangeLog:
    """A bounded list of the changes of the versions that are being applied."""

    __slots__ = ("changes", "limit", "overflowed")

    def __init__(self, limit: int) -> None:
        """Begin empty; ``limit`` is the maximum number of changes."""
        self.limit = limit
        self.changes: list[TableChange] = []
        self.overflowed = False
        """True if there were more changes than the limit; then the list is empty."""

    def add(self, change: TableChange) -> None:
        """Add a change; drop all of them if there are too many."""
        if len(self.changes) >= self.limit:
            self.overflowed = True
            self.changes.clear()
        elif not self.overflowed:
            self.changes.append(change)

    def whole(self, version: int, *, more: bool) -> ChangeLog:
        """Remove and return the changes of versions up to ``version``.

        Args:
            version: The last version that is whole.
            more: True if changes of the next version were added already. Then an overflow also holds for them.
        """
        told = ChangeLog(self.limit)
        # It is unknown in which version the overflow was. So it is reported for this one, and again for the
        # next if changes of that were added before.
        told.overflowed = self.overflowed
        told.changes = [each for each in self.changes if each.version <= version]
        self.changes = self.changes[len(told.changes) :]
        self.overflowed = self.overflowed and more
        return told


class Contents(ABC):
    """Rows by primary key, as of one whole version. All reads between two awaits return rows of that version.

    Only one task may change the contents. A cancelled method has changed nothing that is visible.
    """

    loaded: int | None = None
    """Version at which all rows were read last; None: no rows were read yet, or an old file does not have
    it."""

    @abstractmethod
    async def open(self) -> Cursor | None:
        """Open the contents; return the cursor of their version, or None if there are no rows yet.

        Raises:
            TableFileError: The file has other contents, or cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the contents; changes of an incomplete version are dropped."""

    @abstractmethod
    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Apply steps; the last whole version among them becomes visible.

        Args:
            steps: Captures to apply, with the ends of versions.
            changes: Receives the changes of rows.
        """

    async def keep(self) -> None:
        """Make the cursor durable if no row has changed for a while; nothing to do in memory."""
        return

    @abstractmethod
    async def begin_again(self) -> None:
        """Prepare to load all rows anew; the visible rows stay until `replace`."""

    @abstractmethod
    async def add(self, rows: Sequence[StateRow]) -> None:
        """Add some of the new rows; they are not visible yet."""

    @abstractmethod
    async def replace(self, cursor: Cursor) -> None:
        """Replace all rows by the new ones, whose version is that of ``cursor``."""

    @abstractmethod
    def get(self, key: str) -> StoredRow | None:
        """Return the row with a key; None if there is none."""

    @abstractmethod
    def all_keys(self) -> Iterator[str]:
        """Yield the keys of all rows, in any order."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows."""


class InMemory(Contents):
    """Rows in a dict. A version is applied once it is whole, without an await in between."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._rows: dict[str, StoredRow] = {}
        self._new: dict[str, StoredRow] = {}
        self._waiting: list[Capture] = []
        """Captures of the incomplete version."""

    async def open(self) -> Cursor | None:
        """Return None: memory has no rows of an earlier run."""
        return None

    async def close(self) -> None:
        """Drop all rows."""
        self._rows = {}

    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Apply whole versions, and store the captures of an incomplete one."""
        for captures, cursor in steps:
            # Wait for the end of the version: readers must not see a part of it. The loop below has no await.
            self._waiting += captures
            if cursor is not None:
                for each in self._waiting:
                    self._change(each, changes)
                self._waiting.clear()

    def _change(self, capture: Capture, changes: ChangeLog) -> None:
        key = capture.primary_key
        if key is None:
            self._rows.clear()
            changes.add(TableChange(capture.version, None, None, None, capture.operation))
            return
        old, new = self._rows.get(key), row_after(capture)
        if new is not None:
            self._rows[key] = new
        elif old is not None:
            del self._rows[key]
        else:
            return  # the row was not in the table and is not now: no change for readers
        changes.add(TableChange(capture.version, key, old, new, capture.operation))

    async def begin_again(self) -> None:
        """Drop the rows that were added, and the captures of an incomplete version."""
        self._new = {}
        self._waiting.clear()

    async def add(self, rows: Sequence[StateRow]) -> None:
        """Add rows that are not visible yet."""
        self._new.update((row.primary_key, StoredRow(row.image, row.reader)) for row in rows)

    async def replace(self, cursor: Cursor) -> None:
        """Make the new rows visible in place of the old ones."""
        self._rows, self._new = self._new, {}
        self.loaded = cursor.version

    def get(self, key: str) -> StoredRow | None:
        """Return the row with a key; None if there is none."""
        return self._rows.get(key)

    def all_keys(self) -> Iterator[str]:
        """Yield the keys of all rows."""
        return iter(self._rows)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)
