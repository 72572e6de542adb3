"""Many whole transactions from their messages at once, by a compiled loop; Python assembles the others.

::

    messages ──▶ read_changes ──▶ rows as columns ──▶ the net effect of each transaction ──▶ TransactionBatch
                      └──▶ transactions that the loop leaves ──▶ Assembler ──▶ Transaction

The loop leaves transactions that alter or truncate a table, update a key, or lack values that were not sent
again. Few rows are left to Python as well: by columns they would take longer.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.machine_code.loader import BYTE, INT, LONG, address, loops
from tailrace_server.pipeline.feed.postgres.pgoutput import (
    EPOCH_US,
    Relation,
    commit_of,
    decoded,
)
from tailrace_server.pipeline.feed.source import TransactionBatch
from tailrace_server.wal.record.input_rows import flags_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from tailrace_server.machine_code.loader import Loops
    from tailrace_server.pipeline.feed.postgres.assembly import Assembler
    from tailrace_server.pipeline.feed.postgres.tables import SourceTable, SourceTables
    from tailrace_server.pipeline.feed.source import Transaction
    from tailrace_server.wal.schema.builder import Announced

_ROWS_MIN: Final = 64
"""Rows from which transactions are appended by columns; see `TransactionWriter`."""
ESCAPED: Final = 6
"""Maximum ratio of the bytes of a value in JSON to its bytes."""
_INSERT, _UPDATE, _DELETE = b"IUD"


class TableLayouts:
    """Tables, in ascending order of their oids, in the form that the loops read."""

    def __init__(self, tables: Sequence[SourceTable]) -> None:
        self.tables = tables
        heads = [head for each in tables for head in each.heads]
        ends = np.cumsum([0, *map(len, heads)])
        kinds = [kind.notation for each in tables for kind in each.types]
        self.columns = np.column_stack((kinds, ends[:-1], np.diff(ends))).astype(np.int64)
        self.heads = np.frombuffer(b"".join(heads), np.uint8)
        self.keys = np.array([place for each in tables for place in each.key_places], np.int64)
        sizes = np.array([(len(each.types), len(each.key)) for each in tables], np.int64)
        begins = np.cumsum(sizes, axis=0) - sizes
        oids = [each.relation.oid for each in tables]
        self.table = np.column_stack((oids, sizes[:, 0], begins[:, 0], sizes[:, 1], begins[:, 1]))
        self.spans = np.empty(1 + 4 * int(sizes[:, 0].max()), np.int64)
        self.names = [each.entity_type for each in tables]
        # The bytes of an image that are not of a value: heads, commas, quotes, braces.
        self.row_bytes = max(sum(map(len, each.heads)) + 6 * len(each.types) for each in tables) + 2


class ReadRows:
    """The rows that the loop has read, and their transactions."""

    def __init__(self, machine: Loops, tables: TableLayouts, messages: Sequence[bytes]) -> None:
        count = len(messages)
        data = b"".join(messages)
        ends = np.zeros(count + 1, LONG)
        np.cumsum(np.fromiter(map(len, messages), LONG, count), out=ends[1:])
        # Memory that is not written to takes no room.
        room = ESCAPED * len(data) + count * tables.row_bytes
        numbers, found = np.empty((count, 2), LONG), np.empty((count // 2 + 1, 6), LONG)
        offsets = [np.zeros(count + 2, INT) for _ in range(3)]
        values = [np.empty(room, BYTE) for _ in range(3)]
        self.done = machine.read_changes(
            *(address(np.frombuffer(data, BYTE), BYTE), address(ends, LONG), count),
            *(address(tables.table, LONG), len(tables.tables), address(tables.columns, LONG)),
            *(address(tables.heads, BYTE), address(tables.keys, LONG), address(numbers, LONG)),
            *(
                place
                for pair in zip(offsets, values, strict=True)
                for place in (address(pair[0], INT), address(pair[1], BYTE))
            ),
            *(address(found, LONG), address(tables.spans, LONG)),
        )
        self.transactions = found[: int(np.argmax(found[:, 0] < 0))]
        stops = self.transactions[:, 3]
        rows = int(stops.max(initial=0))
        self._tables = tables
        self.codes, self.letters = numbers[:rows, 0].copy(), numbers[:rows, 1].astype(np.uint8)
        self._bodies = [
            pa.StringArray.from_buffers(rows, pa.py_buffer(at[: rows + 1]), pa.py_buffer(text))
            for at, text in zip(offsets, values, strict=True)
        ]
        images = [np.diff(each[: rows + 1]).astype(LONG) for each in offsets[1:]]
        self.bytes = images[0] + images[1]
        sizes = np.where(stops < 0, 0, stops - self.transactions[:, 2])
        self.places = np.repeat(np.arange(len(sizes)), sizes)

    @property
    def keys(self) -> pa.StringArray:
        """The text of each row's key."""
        return self._bodies[0]

    def identities(self) -> npt.NDArray[np.int64]:
        """Return a number for each row; rows have the same one if they have the same entity type and key."""
        texts: npt.NDArray[np.int64] = self.keys.dictionary_encode().indices.to_numpy().astype(LONG)
        return texts * len(self.names) + self.codes

    @property
    def names(self) -> list[str]:
        """The entity types to which ``codes`` refer."""
        return self._tables.names

    def batch(self, first: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return all rows; the image before is that of each row's first change."""
        keys, befores, afters = self._bodies
        if (first != np.arange(len(first))).any():
            befores = befores.take(pa.array(first))
        nothing = pa.scalar(None, pa.utf8())
        befores = pc.if_else(pc.equal(pc.binary_length(befores), 0), nothing, befores)
        afters = pc.if_else(pa.array(self.letters == _DELETE), nothing, afters)
        operations = np.where(self.letters == _DELETE, Operation.REMOVE, Operation.UPSERT)
        xids = pa.array(self.transactions[:, 4]).cast(pa.utf8())
        columns = {
            "entity_type": pa.DictionaryArray.from_arrays(
                pa.array(self.codes.astype(INT)), pa.array(self._tables.names, pa.utf8())
            ),
            "primary_key": keys,
            "operation": pa.array(operations.astype(np.uint8)),
            "before": befores,
            "after": afters,
            "transaction_id": pa.DictionaryArray.from_arrays(pa.array(self.places), xids),
            "source_timestamp": pa.array(self.transactions[self.places, 5] + EPOCH_US),
        }
        return pa.RecordBatch.from_pydict(columns)


def net_effect(
    identities: Sequence[npt.NDArray[Any]],
    places: npt.NDArray[Any],
    letters: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return a mask of the rows that are the net effect of their transaction, and its letters.

    In between is the place of the first change of each row's key in the transaction, whose image before counts.

    Args:
        identities: Columns of numbers; rows with equal numbers are of the same entity type and key.
        places: Transaction of each row.
        letters: Letter of each row's message.
    """
    total = len(letters)
    keep, first = np.ones(total, np.bool_), np.arange(total)
    columns = (*identities, places)
    order = np.lexsort(columns)
    same = np.logical_and.reduce([each[order[1:]] == each[order[:-1]] for each in columns])
    if not same.any():
        return keep, first, letters
    heads = np.maximum.accumulate(np.where(np.append(False, same), 0, np.arange(total)))
    first[order] = order[heads]
    keep[order[:-1][same]] = False
    existed = letters[first] != _INSERT
    is_removed = letters == _DELETE
    keep &= existed | ~is_removed
    net = np.where(is_removed, _DELETE, np.where(existed, _UPDATE, _INSERT))
    return keep, first, net.astype(np.uint8)


class TransactionBatches:
    """Turns the messages of whole transactions into items, in their order."""

    def __init__(
        self, tables: SourceTables, assembler: Assembler, position: Callable[[int], str]
    ) -> None:
        """Begin without tables.

        Args:
            tables: The tables of the stream; relation messages change them.
            assembler: Assembles the transactions that the loop leaves.
            position: Returns the position of an LSN, for the log.
        """
        self._source_tables = tables
        self._assembler = assembler
        self._position = position
        self._tables: TableLayouts | None = None

    def items(self, messages: Sequence[bytes]) -> Iterator[Transaction | TransactionBatch]:
        """Yield the transactions of messages; the first message begins one, and the last ends one.

        Raises:
            SourceRefused: A table has no key.
        """
        machine = loops(len(messages), _ROWS_MIN)
        if machine is None or _has_messages(messages):
            yield from self._assembled(messages)
            return
        messages = self._introduced(messages)
        while messages:
            known = self._source_tables.in_order()
            if not known:
                yield from self._assembled(messages)
                return
            if self._tables is None or self._tables.tables != known:
                self._tables = TableLayouts(known)
            rows = ReadRows(machine, self._tables, messages)
            yield from self._runs(rows, messages)
            messages = messages[rows.done :]

    def read(self, messages: Sequence[bytes]) -> ReadRows | None:
        """Return the rows of one transaction; None if the loop leaves it."""
        if _has_messages(messages):
            return None
        machine, messages = loops(len(messages)), self._introduced(messages)
        if machine is None or not (known := self._source_tables.in_order()):
            return None
        if self._tables is None or self._tables.tables != known:
            self._tables = TableLayouts(known)
        rows = ReadRows(machine, self._tables, messages)
        return rows if rows.done == len(messages) and rows.transactions[0, 3] >= 0 else None

    def announced(self, names: Collection[str]) -> dict[str, Announced]:
        """Return the columns of entity types, as `Assembler.announced` does."""
        known = self._source_tables.in_order()
        return self._assembler.announced(each for each in known if each.entity_type in names)

    def _introduced(self, messages: Sequence[bytes]) -> Sequence[bytes]:
        """Return messages without those that describe a new table, which is noted, or one as it was before."""
        if not any(each[:1] == b"R" for each in messages):
            return messages
        found = []
        for each in messages:
            if each[:1] == b"R":
                relation = decoded(each)
                assert isinstance(relation, Relation)
                if self._source_tables.introduce(relation):
                    continue
            found.append(each)
        return found

    def _assembled(self, messages: Sequence[bytes]) -> Iterator[Transaction]:
        for each in messages:
            message = decoded(each)
            done = None if message is None else self._assembler.add(message)
            if done is not None:
                yield done

    def _runs(
        self, rows: ReadRows, messages: Sequence[bytes]
    ) -> Iterator[Transaction | TransactionBatch]:
        """Yield the rows of neighbouring transactions as batches, and other transactions one by one."""
        identities = rows.identities()
        keep, first, rows.letters = net_effect([identities], rows.places, rows.letters)
        batch = rows.batch(first)
        if (alike := pc.equal(batch["before"], batch["after"])).true_count:
            keep &= ~flags_of(alike.fill_null(False))
        listed = rows.transactions.tolist()
        for is_left, group in groupby(listed, lambda each: each[3] < 0):
            run = list(group)
            begin, end = run[0][0], run[-1][1]
            start, stop = run[0][2], run[-1][3]
            if is_left or stop - start < _ROWS_MIN:
                yield from self._assembled(messages[begin:end])
                continue
            chosen = start + np.flatnonzero(keep[start:stop])
            if not len(chosen):
                continue
            part = batch.slice(start, stop - start)
            if len(chosen) < stop - start:
                part = part.filter(pa.array(keep[start:stop]))
            _, firsts = np.unique(identities[chosen], return_index=True)
            yield self._batch_of(rows, chosen, firsts, part, messages[end - 1])

    def _batch_of(
        self,
        rows: ReadRows,
        chosen: npt.NDArray[np.int64],
        firsts: npt.NDArray[np.int64],
        part: pa.RecordBatch,
        commit: bytes,
    ) -> TransactionBatch:
        committed = commit_of(commit)
        codes, letters = rows.codes[chosen], rows.letters[chosen]
        assert self._tables is not None
        used = [self._tables.tables[code] for code in np.unique(codes).tolist()]
        # A row is new to the log if its first change among these is an insert.
        firsts = firsts[letters[firsts] == _INSERT]
        inserted: dict[str, Any] = {}
        for code in np.unique(codes[firsts]).tolist():
            here = firsts[codes[firsts] == code]
            inserted[self._tables.names[code]] = (
                part["primary_key"].take(pa.array(here)).to_pylist()
            )
        return TransactionBatch(
            rows=part,
            versions=len(np.unique(rows.places[chosen])),
            bytes=int(rows.bytes[chosen].sum()),
            position=self._position(committed.end_lsn),
            source_timestamp=committed.timestamp,
            columns=self._assembler.announced(used),
            inserted=inserted,
        )


def _has_messages(messages: Sequence[bytes]) -> bool:
    """Return True if there are logical messages, which the loop skips."""
    return any(each[:1] == b"M" for each in messages)
