"""The store of a table's rows, which changes by whole versions, and the store in memory."""

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
    """A row as it is held."""

    image: bytes | None
    """None: the source sent none."""
    reader: RowReader | None
    """Knows its columns; None: rows are images."""

    def value(self) -> dict[str, Any] | bytes | None:
        """Return the row as the table gives it.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value.
        """
        if self.image is None or self.reader is None:
            return self.image
        return self.reader.read(self.image)


def row_after(capture: Capture) -> StoredRow | None:
    """Return the row that a change of a row leaves in its table; None: it is not certainly in any more."""
    is_out = capture.transition in (Transition.LEAVE, Transition.UNKNOWN)
    if capture.operation is Operation.UPSERT and not is_out:
        return StoredRow(capture.after, capture.reader)
    return None


@dataclass(frozen=True, slots=True)
class TableChange:
    """One row changed, or all of them went."""

    version: int
    primary_key: str | None
    """None: a truncate. Every row that there was went, and there is no change of each."""
    old: StoredRow | None
    """The row before; None: there was none."""
    new: StoredRow | None
    """The row after; None: there is none."""
    operation: Operation
    """The operation of the source. ``UPSERT`` without a row after: the row is still there, and does not meet
    the table's condition any more."""

    @property
    def transition(self) -> Transition | None:
        """How the row moved in this table, exact also where the source sent no row before; None: a truncate."""
        if self.primary_key is None:
            return None
        if self.new is None:
            return Transition.LEAVE
        return Transition.ENTER if self.old is None else Transition.UPDATE

    @property
    def before(self) -> Any:
        """The row before, as the table gives it; None: there was none. Raises ValueNotHeld."""
        return None if self.old is None else self.old.value()

    @property
    def after(self) -> Any:
        """The row after, as the table gives it; None: there is none. Raises ValueNotHeld."""
        return None if self.new is None else self.new.value()


class ChangeLog:
    """The changes of the versions that are being applied, up to a number."""

    __slots__ = ("changes", "limit", "overflowed")

    def __init__(self, limit: int) -> None:
        """Keep so many at most."""
        self.limit = limit
        self.changes: list[TableChange] = []
        self.overflowed = False
        """True if there were more; then none is kept."""

    def add(self, change: TableChange) -> None:
        """Keep one more."""
        if len(self.changes) >= self.limit:
            self.overflowed = True
            self.changes.clear()
        elif not self.overflowed:
            self.changes.append(change)

    def whole(self, version: int, *, more: bool) -> ChangeLog:
        """Return what is of versions up to one, and keep the rest; ``more``: a version is under way."""
        told = ChangeLog(self.limit)
        told.overflowed = self.overflowed
        told.changes = [each for each in self.changes if each.version <= version]
        self.changes = self.changes[len(told.changes) :]
        self.overflowed = self.overflowed and more
        return told


class Contents(ABC):
    """Rows by primary key, as of one whole version: all that is read between two awaits is of that one.

    One task changes it. A method that is cancelled has changed nothing that is visible.
    """

    loaded: int | None = None
    """The version at which all rows were read; None: there are none yet, or it is not known."""

    @abstractmethod
    async def open(self) -> Cursor | None:
        """Begin; return the cursor that the rows are as of, or None where there are none yet.

        Raises:
            TableFileError: The file is another's, or cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """End; what is not of a whole version is dropped."""

    @abstractmethod
    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Apply steps; what is visible afterwards is as of the last whole version among them."""

    async def keep(self) -> None:
        """Make durable how far it has come, where no row has changed for a while; memory keeps nothing."""
        return

    @abstractmethod
    async def begin_again(self) -> None:
        """Make ready for all rows anew; those that are visible stay until `replace`."""

    @abstractmethod
    async def add(self, rows: Sequence[StateRow]) -> None:
        """Add some of the new rows."""

    @abstractmethod
    async def replace(self, cursor: Cursor) -> None:
        """Put the new rows in the place of all others; they are as of a cursor."""

    @abstractmethod
    def get(self, key: str) -> StoredRow | None:
        """Return a row; None: there is none of that key."""

    @abstractmethod
    def all_keys(self) -> Iterator[str]:
        """Yield the keys of all rows, in no order."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows."""


class InMemory(Contents):
    """A dict. A version is applied when it is whole, between two turns of the event loop."""

    def __init__(self) -> None:
        """Be empty."""
        self._rows: dict[str, StoredRow] = {}
        self._new: dict[str, StoredRow] = {}
        self._waiting: list[Capture] = []
        """Of the version under way."""

    async def open(self) -> Cursor | None:
        """Return None: nothing is kept from an earlier run."""
        return None

    async def close(self) -> None:
        """Drop all rows."""
        self._rows = {}

    async def apply(self, steps: Sequence[Step], changes: ChangeLog) -> None:
        """Apply what is whole, and keep the rest."""
        for captures, cursor in steps:
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
            return
        changes.add(TableChange(capture.version, key, old, new, capture.operation))

    async def begin_again(self) -> None:
        """Forget what was added, and the version under way."""
        self._new = {}
        self._waiting.clear()

    async def add(self, rows: Sequence[StateRow]) -> None:
        """Add rows to those that are not visible yet."""
        self._new.update((row.primary_key, StoredRow(row.image, row.reader)) for row in rows)

    async def replace(self, cursor: Cursor) -> None:
        """Show the new rows."""
        self._rows, self._new = self._new, {}
        self.loaded = cursor.version

    def get(self, key: str) -> StoredRow | None:
        """Return a row."""
        return self._rows.get(key)

    def all_keys(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self._rows)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)
