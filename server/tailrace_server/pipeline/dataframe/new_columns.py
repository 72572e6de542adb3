"""The columns that appear for the first time in rows of a DataFrame.

A log's schema lists the columns of an entity type. The commit adds the columns that rows have and the schema
does not; so each task reports the first row with each new column.

`KnownNames` finds the rows with an unknown name, for whole columns. A compiled loop walks through each object
and looks its names up by a hash. Names in nested objects are not looked up. An unknown name is missed only if
two hashes collide (2^-64 for two given names). Without the compiled loop each object is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.machine_code.loader import BYTE, LONG, WORD, address, loops
from tailrace_server.pipeline.catalog.columns import Sighting
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.record.images import members
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import msgspec
    import numpy.typing as npt

    from tailrace_server.pipeline.dataframe.input_rows import NamedColumns
    from tailrace_server.pipeline.dataframe.transactions import Transactions

_FACTOR: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class KnownNames:
    """A set of pairs (group, name), looked up by hash for many rows at once. Groups are small numbers."""

    def __init__(self) -> None:
        """Start with an empty set."""
        self._hashes: set[int] = set()
        self._bits = 4
        self._table = np.zeros(1 << self._bits, np.uint64)

    def add(self, group: int, name: str) -> None:
        """Add a name in the form that JSON has, without quotes and with its escapes."""
        value = _hash_of(group, name.encode())
        if value in self._hashes:
            return
        self._hashes.add(value)
        slot = value >> (64 - self._bits)
        if self._table[slot]:
            self._grow()
        else:
            self._table[slot] = value

    @property
    def table(self) -> tuple[int, int]:
        """The address of the table of hashes, valid until a name is added, and the bits of the table's size."""
        return address(self._table, WORD), self._bits

    def _grow(self) -> None:
        """Enlarge the table until each name has a slot of its own."""
        values = np.array(sorted(self._hashes), np.uint64)
        while True:
            self._bits += 1
            slots = values >> np.uint64(64 - self._bits)
            if len(np.unique(slots)) == len(slots):
                break
        self._table = np.zeros(1 << self._bits, np.uint64)
        self._table[slots] = values


def rows_with_unknown_names(
    images: pa.Array, groups: npt.NDArray[np.int64], known: KnownNames
) -> npt.NDArray[np.int64]:
    """Return the rows that have to be parsed, as they may have a name that is unknown in their group.

    Args:
        images: A binary or string array of valid JSON objects.
        groups: The group of each row.
        known: The known names.
    """
    machine = loops(len(images))
    if machine is None:
        return np.flatnonzero(images.is_valid().to_numpy(zero_copy_only=False))
    marks = np.zeros(len(images), np.uint8)
    machine.mark_unknown(
        *(*addresses_of(images), images.offset, len(images)),
        *(address(groups, LONG), *known.table, address(marks, BYTE)),
    )
    return np.flatnonzero(marks)


def _hash_of(group: int, name: bytes) -> int:
    """Return the hash of a name; `mark_unknown` computes the same hash."""
    value = ((group + 1) * _FACTOR) & _MASK
    # Take words of eight bytes from the end. The bytes left at the front are the high bytes of the last word.
    for end in range(len(name), -1, -8):
        word = int.from_bytes(name[max(end - 8, 0) : end].rjust(8, b"\0"), "little")
        product = ((value ^ word) * _FACTOR) & _MASK
        value = product ^ (product >> 29)
    return value


class NewColumns:
    """Finds the new columns in the rows of one partition."""

    def __init__(self, known: Mapping[str, Iterable[str]], declared: Collection[str]) -> None:
        """Start with the known columns.

        Args:
            known: The known columns, by entity type.
            declared: The entity types whose images are not inspected.
        """
        self.sightings: list[Sighting] = []
        """The columns found, by version relative to the beginning of the partition."""
        self._declared = frozenset(declared)
        self._known = {entity_type: set(names) for entity_type, names in known.items()}
        self._names = KnownNames()
        self._groups: dict[str, int] = {}
        """Entity type → its group in ``_names``, for the types seen so far."""

    def observe(
        self,
        column: dict[str, pa.Array],
        operations: npt.NDArray[np.int64],
        transactions: Transactions,
        named: NamedColumns,
        first_version: int,
    ) -> None:
        """Record the columns that are new in rows of whole transactions.

        Args:
            column: The columns of the rows, by name.
            operations: The operation of each row.
            transactions: The transactions of the rows.
            named: The names in ``changed``.
            first_version: The version of the first transaction, relative to the beginning of the partition.
        """
        # 1. Choose the rows to inspect: rows of data whose entity type is not declared. ``change`` is inspected
        #    only for upserts.
        types, codes = transactions.types
        is_open = np.array([*(name not in self._declared for name in types), False])
        inspected = is_open[codes] & ~transactions.is_lead
        upserts = inspected & (operations == Operation.UPSERT)
        images = _where(inspected, column["after"], column["before"])
        changes = _where(upserts, column["change"])
        sightings: list[Sighting] = []

        def inspect(row: int) -> None:
            start, stop = np.searchsorted(named.rows, (row, row + 1))
            names = [named.names[code] for code in named.codes[start:stop]]
            change = changes[row].as_py()
            # A change that is a multiplicity names no columns.
            if change is not None and not names and multiplicity_of(change) is not None:
                change = None
            shown = (*_members(images[row].as_py()), *_members(change), *names)
            version = int(transactions.of_row[row]) + first_version
            sightings.extend(self._new_among(version, types[codes[row]], shown))

        # 2. Inspect the first row of each new type alone. Most other rows of the type have the same columns,
        #    and would all be suspects below if these names were unknown.
        for place, name in enumerate(types):
            if is_open[place] and name not in self._groups:
                group = self._groups[name] = len(self._groups)
                for column_name in self._known.get(name, ()):
                    self._names.add(group, _as_written(column_name))
                rows = np.flatnonzero(inspected & (codes == place))
                if len(rows):
                    inspect(int(rows[0]))
        # 3. Find all rows that may have an unknown name. Arrow may have bytes in the place of a null, so the
        #    result may include rows that are not to be inspected: filter these out.
        groups = np.array([self._groups.get(name, 0) for name in (*types, "")], np.int64)[codes]
        suspects = {
            row
            for texts, counts in ((images, inspected), (changes, upserts))
            if texts.null_count < len(texts)
            for row in rows_with_unknown_names(texts, groups, self._names).tolist()
            if counts[row]
        }
        suspects.update(self._rows_that_name_unknown(named, codes, types))
        # 4. Parse the suspects in the order of rows: a column begins with the first version that has it.
        for row in sorted(suspects):
            inspect(row)
        self.sightings += sorted(sightings, key=lambda sighting: sighting.version)

    def _rows_that_name_unknown(
        self, named: NamedColumns, codes: npt.NDArray[np.int64], types: list[str]
    ) -> Iterator[int]:
        """Yield the first row with each name in ``changed`` that is no column of its entity type."""
        width = len(named.names)
        pairs = codes[named.rows] * width + named.codes
        for pair in pc.unique(pa.array(pairs)).to_pylist():
            if named.names[pair % width] not in self._known.get(types[pair // width], ()):
                yield int(named.rows[np.argmax(pairs == pair)])

    def _new_among(
        self, version: int, entity_type: str, shown: Iterable[str]
    ) -> Iterator[Sighting]:
        """Yield the new columns among the names in a row, and add them to the known ones."""
        known = self._known.get(entity_type)
        if known is None:
            known = self._known[entity_type] = set()
            yield Sighting(version, entity_type, None)
        for name in shown:
            if name not in known:
                known.add(name)
                if entity_type in self._groups:
                    self._names.add(self._groups[entity_type], _as_written(name))
                yield Sighting(version, entity_type, name)


def _where(counts: npt.NDArray[np.bool_], *texts: pa.Array) -> pa.Array:
    """Return, for each chosen row, the first text that is not null; null for other rows."""
    if not counts.any() or all(each.null_count == len(each) for each in texts):
        return pa.nulls(len(counts), pa.binary())
    if counts.all() and not texts[0].null_count:
        return texts[0]
    return pc.if_else(pa.array(counts), pc.coalesce(*texts), pa.scalar(None, pa.binary()))


def _members(image: bytes | None) -> dict[str, msgspec.Raw]:
    return {} if image is None else members(image)


def _as_written(name: str) -> str:
    return orjson.dumps(name).decode()[1:-1]
