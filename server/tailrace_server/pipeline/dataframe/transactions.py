"""Whole transactions in a batch of rows: their bounds, their lead records, and their ids, column by column.

Rows of a transaction are adjacent, in one partition. A transaction that reappears later, in this partition or
another one, would become a second version. So a task stores a hash of each id, 8 bytes a transaction, and sends
the hashes with its result. The commit compares the hashes of all tasks.

The hash function is the one for keys (`wal.record.key_hash`). Two ids may have the same hash (3 % chance among
a billion ids). The commit distinguishes such ids by the ids in the leads. A task takes them for one transaction
that reappears, and refuses it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.input_rows import check_lead
from tailrace_server.wal.record.interleaving import starts_of
from tailrace_server.wal.record.keys import key_hash, key_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Hashes = npt.NDArray[np.uint64]

_ESCAPED: Final = r'["\\\x00-\x1f]'
_TYPES_AT_ONCE: Final = 16
"""With at most this many entity types in a batch, the counts in leads are computed column by column."""


class EntityTypes(NamedTuple):
    """The entity types of some rows."""

    names: list[str]
    codes: npt.NDArray[np.int64]
    """For each row, the index of its entity type in ``names``; ``len(names)`` for a row without a type."""

    @classmethod
    def of(cls, column: pa.StringArray) -> EntityTypes:
        """Return the entity types in a column."""
        encoded = pc.dictionary_encode(column)
        names = encoded.dictionary.to_pylist()
        return cls(names, encoded.indices.fill_null(len(names)).to_numpy().astype(np.int64))


class Transactions:
    """The transactions of a batch of rows. Rows of one transaction are adjacent."""

    def __init__(self, rows: pa.Table) -> None:
        """Find the transactions.

        Args:
            rows: Rows of `input_table`, in one chunk.

        Raises:
            InvalidRequest: A lead is not the first row of its transaction.
        """
        self._rows = rows
        self._ids = rows.column("transaction_id").chunk(0)
        self.types = EntityTypes.of(rows.column("entity_type").chunk(0))
        self.starts = starts_of(self._ids)
        self._sizes = np.diff(self.starts, append=rows.num_rows)
        self.of_row = np.repeat(np.arange(len(self.starts)), self._sizes)
        """For each row, the index of its transaction."""
        self.is_lead = rows.column("operation").chunk(0).to_numpy() == Operation.TRANSACTION
        """For each row, True if it is a given lead."""
        self.has_lead = self.is_lead[self.starts]
        """For each transaction, True if it begins with a given lead."""
        if np.count_nonzero(self.is_lead) != np.count_nonzero(self.has_lead):
            raise InvalidRequest(
                "a row with operation transaction must be the first of its transaction"
            )

    @cached_property
    def index(self) -> npt.NDArray[np.int32]:
        """The index of each row in its version; 0 is the lead record."""
        # A given lead is the first row, with index 0. Without it the first row has index 1.
        zeros = self.starts - ~self.has_lead
        index: npt.NDArray[np.int64] = np.arange(len(self.of_row)) - zeros[self.of_row]
        return index.astype(np.int32)

    def check_leads(self) -> None:
        """Compare given leads with the rows of their transactions.

        Raises:
            InvalidRequest: A lead has wrong counts.
        """
        given = self.has_lead
        for start, size in zip(
            self.starts[given].tolist(), self._sizes[given].tolist(), strict=True
        ):
            check_lead(
                self._rows, start, self.types.codes[start + 1 : start + size], self.types.names
            )

    def lead_texts(self) -> pa.BinaryArray:
        """Return ``after`` for each lead that is not given, in the form of `wal.record.columns.lead_text`."""
        missing = ~self.has_lead
        if not missing.any():
            return pa.array([], pa.binary())
        # 1. Count rows by (transaction, entity type) in one pass; the last column counts rows without a type.
        names, codes = self.types
        width = len(names) + 1
        table = np.bincount(self.of_row * width + codes, minlength=len(self.starts) * width)
        counts = table.reshape(len(self.starts), width)[missing][:, : len(names)]
        totals = pc.cast(pa.array(self._sizes[missing]), pa.string())
        # 2. Build the texts column by column: byte for byte the result of `lead_text`.
        texts = pc.binary_join_element_wise(
            '{"transaction_id":',
            _json_texts(self._ids.take(pa.array(self.starts[missing]))),
            ',"mutation_count":',
            totals,
            ',"counts":{',
            _count_texts(names, counts),
            '},"source_count":',
            totals,
            "}",
            "",
        )
        return texts.cast(pa.binary())


def _count_texts(names: list[str], counts: npt.NDArray[np.int64]) -> pa.Array:
    """Return the content of ``counts`` for each transaction, with names in rising order."""
    order = sorted(range(len(names)), key=names.__getitem__)
    if len(names) > _TYPES_AT_ONCE:
        return pa.array(
            orjson.dumps({names[at]: int(row[at]) for at in order if row[at]}).decode()[1:-1]
            for row in counts
        )
    texts = pa.array([""] * len(counts))
    for at in order:
        number = pc.cast(pa.array(counts[:, at]), pa.string())
        comma = pc.if_else(pc.equal(texts, ""), "", ",")
        head = orjson.dumps(names[at]).decode() + ":"
        longer = pc.binary_join_element_wise(texts, comma, head, number, "")
        texts = pc.if_else(pa.array(counts[:, at] > 0), longer, texts)
    return texts


def _json_texts(ids: pa.Array) -> pa.Array:
    """Return strings as JSON; null as ``null``."""
    if pc.any(pc.match_substring_regex(ids, _ESCAPED)).as_py():
        return pa.array([orjson.dumps(each).decode() for each in ids.to_pylist()])
    return pc.coalesce(pc.binary_join_element_wise('"', ids, '"', ""), pa.scalar("null"))


_SEED: Final = 0
_ADVICE: Final = (
    "the rows of one transaction must be consecutive and in one partition: write "
    "df.repartitionByRange(n, key).sortWithinPartitions(key, …) with a key that these rows share"
)


class SeenTransactions:
    """The ids of the transactions in a partition, as hashes of 8 bytes, briefly 16 while arrays are merged."""

    def __init__(self) -> None:
        """Start without transactions."""
        self._parts: list[Hashes] = []
        """Sorted arrays, each more than four times as long as the next: so there are few arrays, and merges
        are rare.
        """

    def add(self, ids: pa.StringArray) -> None:
        """Add transactions; null ids are ignored.

        Raises:
            InvalidRequest: A transaction was added before.
        """
        ids = ids.drop_null()
        if not len(ids):
            return
        hashes = key_hashes(np.full(len(ids), _SEED, np.uint64), ids)
        ordered = np.sort(hashes)
        # Search among the new ids, then in each array of earlier ones.
        again = [ordered[1:][ordered[1:] == ordered[:-1]]]
        again += [ordered[_contains(part, ordered)] for part in self._parts]
        for found in again:
            if len(found):
                id = ids[int(np.flatnonzero(hashes == found[0])[-1])].as_py()
                raise InvalidRequest(
                    f"transaction {id!r} continues after other transactions in its partition; "
                    f"{_ADVICE}"
                )
        self._parts.append(ordered)
        while len(self._parts) > 1 and len(self._parts[-2]) <= 4 * len(self._parts[-1]):
            two = np.concatenate([self._parts.pop(), self._parts.pop()])
            self._parts.append(
                np.sort(two, kind="stable")
            )  # this sort detects sorted runs and merges them

    def hashes(self) -> Hashes:
        """Return all hashes, sorted."""
        return np.sort(np.concatenate([np.empty(0, np.uint64), *self._parts]), kind="stable")


def refuse_split(partitions: Sequence[tuple[Hashes, Sequence[Path]]]) -> None:
    """Check that no transaction is in two partitions.

    Args:
        partitions: For each partition, its sorted hashes and its segments.

    Raises:
        InvalidRequest: A transaction is in two partitions.
    """
    if not partitions:
        return
    ordered = np.sort(np.concatenate([hashes for hashes, _ in partitions]))
    for twice in np.unique(ordered[1:][ordered[1:] == ordered[:-1]]):
        holding = [paths for hashes, paths in partitions if _contains(hashes, twice[None])[0]]
        # Equal hashes may belong to different ids: compare the ids themselves.
        ids = [_id_in(paths, int(twice)) for paths in holding]
        if None in ids or len(set(ids)) < len(ids):
            id = next((id for id in ids if id is not None), None)
            named = "a transaction" if id is None else f"transaction {id!r}"
            raise InvalidRequest(f"{named} is in two partitions; {_ADVICE}")


def _contains(part: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return, for each hash, True if a sorted array has it."""
    at = np.minimum(np.searchsorted(part, hashes), len(part) - 1)
    found: npt.NDArray[np.bool_] = part[at] == hashes if len(part) else np.zeros(len(at), np.bool_)
    return found


def _id_in(segments: Iterable[Path], hashed: int) -> str | None:
    """Return the id with a hash, from the leads in segments; None if the lead does not have the id."""
    for segment in segments:
        with pa.OSFile(str(segment)) as file, pa.ipc.open_file(file) as reader:
            for place in range(reader.num_record_batches):
                batch = reader.get_batch(place)
                leads = batch.column("after").filter(pc.equal(batch.column("index"), 0))
                for lead in leads.to_pylist():
                    id = orjson.loads(lead).get("transaction_id")
                    if isinstance(id, str) and key_hash(_SEED, id) == hashed:
                        return id
    return None
