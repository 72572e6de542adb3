"""The counts of equal rows in tables without a key: the whole row is its own key.

Counts must survive batches, restarts and take-overs, and must always be those of the newest entry. So they are
in files that the entry names as pending, like the open transactions. Such a file is a *tier*: the counts that a
commit changed. A later tier overrides an earlier one, and small tiers are merged (`cdcv2.state`). Counts are
looked up by the digest of the row, so each takes some 60 bytes, whatever the size of the row.

A row that would make a count wrong goes to quarantine, with the reason:

* a row of a late transaction, because it may be counted already;
* a row of a second snapshot, because all of its rows are counted already.

Source: docs/adr/0074-identity-of-tables-and-rows.md.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.cdcv2.folding import INDEX
from tailrace_server.pipeline.cdcv2.state import (
    KeyIndex,
    StateFile,
    merged,
    read_rows,
    tiers,
    tiers_to_merge,
)
from tailrace_server.pipeline.input.change import READ, batch_of, position_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.consolidate import Effect
    from tailrace_server.wal.files.documents import PendingSegment

_KIND: Final = "counts"
_STATE: Final = b"tailrace.counts"
"""Key of the file metadata of a tier; the value is its `_CountedTables`."""
_TIER_ROWS_MAX: Final = 1 << 24
_STREAM: Final = ""


class CountedTable(msgspec.Struct, frozen=True):
    """The state of a counted table, apart from its counts."""

    number: int
    """Number of the table among the counted tables, from 0."""
    snapshot: str
    """Position of the snapshot that the table began with, in hex; empty if it began without a snapshot."""
    generation: int = 0
    """Number of truncates so far. Counts of an earlier generation are invalid."""

    @property
    def prefix(self) -> str:
        """The common prefix of the names of the table's counts."""
        return f"{self.number}.{self.generation}."


class _CountedTables(msgspec.Struct, frozen=True):
    tier: int
    tables: dict[str, CountedTable]


class Counting:
    """The counts that one commit changes, while its records are built. Discarded if the commit fails."""

    def __init__(
        self,
        tables: Mapping[str, CountedTable],
        counts_of: Callable[[Iterable[Change]], Mapping[str, int]],
    ) -> None:
        """Begin with the counts of the newest entry.

        Args:
            tables: Entity type → state, for the tables that are counted so far.
            counts_of: Returns name of a row's count → count, for the rows of some changes that have one.
        """
        self.tables = dict(tables)
        self.changed: dict[str, int] = {}
        """Name → new count, for the counts that the commit changes."""
        self.below_zero = 0
        """Number of records of the commit that leave a count below zero."""
        self._counts_of = counts_of
        self._counts: Mapping[str, int] = {}

    def look_up(self, changes: Iterable[Change]) -> None:
        """Read the counts that the next transactions need, given all of their changes."""
        self._counts = self._counts_of(changes)

    def fault(self, change: Change, late_of: int | None) -> str | None:
        """Return the reason why a change cannot be counted; None if it can.

        The first change of a table begins its counting.

        Args:
            change: A change of a counted table. Changes are given in source order.
            late_of: For a late row, the version of its transaction; else None.
        """
        entity_type = change.entity_type or ""
        if late_of is not None:
            return (
                f"the row may be counted already: its transaction is version {late_of}; to count "
                "it, put it in a new file without transaction and source.txId, gtid, file"
            )
        # All rows of a snapshot have its position; changes of the stream have none here. So a table remembers
        # whether, and with which snapshot, its counting began.
        position = position_bytes(change.place).hex() if change.operation == READ else _STREAM
        table = self.tables.get(entity_type)
        if table is None:
            self.tables[entity_type] = CountedTable(len(self.tables), position)
        elif change.operation == READ and position != table.snapshot:
            return (
                f"a second snapshot of {entity_type!r}, whose rows are counted already; "
                "to begin again, ingest it into a new catalog"
            )
        return None

    def settle(self, effect: Effect) -> Effect:
        """Add the ``diff`` of an effect to its count, and return the effect with operation and images set."""
        table = self.tables[effect.entity_type]
        # A truncate begins a new generation, which invalidates all counts without reading them.
        if effect.diff is None:
            later = msgspec.structs.replace(table, generation=table.generation + 1)
            self.tables[effect.entity_type] = later
            return effect
        name = row_name(table, effect.entity_type, effect.primary_key or "")
        before = self.changed.get(name, self._counts.get(name, 0))
        count = self.changed[name] = before + effect.diff
        self.below_zero += count < 0
        return effect._replace(
            operation=Operation.UPSERT if count else Operation.REMOVE,
            change=orjson.dumps({"diff": effect.diff}),
            before=effect.after if before else None,
            after=effect.after if count else None,
        )


class RowCounts:
    """The row counts of the newest entry, in the files that it names."""

    def __init__(self, catalog: Path) -> None:
        """Begin without any counted table."""
        self.tables: Mapping[str, CountedTable] = {}
        """Entity type → state, for the counted tables."""
        self._catalog = catalog
        self._files: list[StateFile] = []
        self._index = KeyIndex(catalog)

    @property
    def files(self) -> list[PendingSegment]:
        """The files that hold the counts; every entry names them."""
        return [each.file for each in self._files]

    def adopt(self, file: PendingSegment, table: pa.Table) -> None:
        """Add a file of the newest entry. Call this once for each of its files, in any order."""
        state = msgspec.json.decode(table.schema.metadata[_STATE], type=_CountedTables)
        # The state of the newest tier counts. Files come in any order, so compare with those added so far.
        if all(each.tier < state.tier for each in self._files):
            self.tables = state.tables
        self._files.append(StateFile(_KIND, file, state.tier))
        self._files.sort(key=lambda each: each.tier)

    def check(self, counted: Callable[[str], bool], known: Iterable[str]) -> None:
        """Check that the options count the same tables as the catalog does; else counts would be wrong.

        Args:
            counted: Returns True for entity types whose rows the options say to count.
            known: The entity types of the catalog.

        Raises:
            InvalidRequest: The options and the catalog disagree about a table.
        """
        catalog = self._catalog.name
        for entity_type in self.tables:
            if not counted(entity_type):
                raise InvalidRequest(
                    f"catalog {catalog} counts the rows of {entity_type!r}: give --keyless "
                    f"{entity_type}=whole-row again"
                )
        for entity_type in known:
            if counted(entity_type) and entity_type not in self.tables:
                raise InvalidRequest(
                    f"--keyless {entity_type}=whole-row: its rows in catalog {catalog} have another key; "
                    "ingest it into a new catalog"
                )

    def begin(self) -> Counting:
        """Return the counting of a commit."""
        return Counting(self.tables, self._counts_of)

    def _counts_of(self, changes: Iterable[Change]) -> dict[str, int]:
        names = set()
        for change in changes:
            table = self.tables.get(change.entity_type or "")
            if table is not None:
                for key in (change.primary_key, change.old_key):
                    if key is not None:
                        names.add(row_name(table, change.entity_type or "", key))
        # Look up all counts at once: one pass over the tiers instead of one for each row.
        asked = sorted(names)
        found = self._index.last_rows(self._files, _hashes(asked), asked) if asked else {}
        return {name: count for name, (_, count) in found.items()}

    def files_after(self, counting: Counting | None, path: Path) -> RowCounts:
        """Write the counts that a commit changed as a new tier at ``path``, and return the counts after it.

        Raises:
            LogFull: The disk is full.
        """
        if counting is None or not (counting.changed or counting.tables != self.tables):
            return self
        # 1. Merge small tiers into the new one, so that the number of tiers grows with the logarithm of rows.
        names = sorted(counting.changed)
        hashes = _hashes(names).tolist()
        rows = [
            (hashed, name, None, counting.changed[name])
            for hashed, name in zip(hashes, names, strict=True)
        ]
        held = tiers(self._files)
        count = tiers_to_merge(held, len(rows), _TIER_ROWS_MAX)
        kept, gone = held[: len(held) - count], held[len(held) - count :]
        older = [read_rows(self._catalog, tier.files, INDEX) for tier in gone]
        table = merged([*older, batch_of(rows, INDEX)], oldest=not kept)
        # 2. Drop the counts of earlier generations: a truncate has made them invalid.
        if any(each.generation for each in counting.tables.values()):
            key = table.column("key")
            current = [pc.starts_with(key, each.prefix) for each in counting.tables.values()]
            alive = current[0]
            for each in current[1:]:
                alive = pc.or_(alive, each)
            table = table.filter(alive)
        # 3. Write the tier with the state of all tables; after a restart, the newest tier's state is used.
        number = held[-1].number + 1 if held else 0
        state = msgspec.json.encode(_CountedTables(number, counting.tables))
        file = write_pending(path, table.replace_schema_metadata({_STATE: state}))
        # Return a new object: if the commit fails, the present one must still agree with the newest entry.
        after = RowCounts(self._catalog)
        after.tables = counting.tables
        after._files = [*(each for tier in kept for each in tier.files)]
        after._files.append(StateFile(_KIND, file, number))
        after._index = self._index
        after._index.keep(after._files)
        return after


def is_counts(table: pa.Table) -> bool:
    """Return True if a pending file holds row counts."""
    return _STATE in (table.schema.metadata or {})


def row_name(table: CountedTable, entity_type: str, key: str) -> str:
    """Return the name of a row's count."""
    digest = blake2b(f"{entity_type}\0{key}".encode(errors="surrogatepass"), digest_size=16)
    return table.prefix + digest.hexdigest()


def _hashes(names: Iterable[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return the hash of each name for the index: the first 8 bytes of the digest in the name."""
    return np.array([int(name[-32:-16], 16) for name in names], np.uint64)
