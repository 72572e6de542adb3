"""The contents of changes by version and entity type: their numbers, and the values of lead records.

Tasks report them with their runs, as a table with one row of about 90 bytes for each version and entity type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.typed_rows import DELETE, INSERT, KIND_NAMES, PREIMAGE
from tailrace_server.wal.record.keys import key_hashes
from tailrace_server.wal.source_batches import BatchContent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

_KINDS: Final = KIND_NAMES[1:]
_LEAD: Final = ("transaction_id", "timestamp")
_SCHEMA: Final = pa.schema(
    [
        ("version", pa.int64()),
        ("entity_type", pa.string()),
        *((name, pa.int64()) for name in _KINDS),
        ("transaction_id", pa.string()),
        ("timestamp", pa.int64()),
    ]
)
_TIMES: Final = np.uint64(0x9E3779B97F4A7C15)


class ChangeTally:
    """The contents of the changes of one task."""

    def __init__(self, *, numbered: bool) -> None:
        """Begin without changes.

        Args:
            numbered: True to make a fingerprint.
        """
        self._numbered = numbered
        self.table = _SCHEMA.empty_table()
        """One row for each version and entity type."""
        self.content = BatchContent()
        """The fingerprint of the changes, to compare a repeated batch with."""
        self._parts: list[pa.Table] = []

    def add(self, changes: pa.Table, names: Sequence[str]) -> None:
        """Add changes.

        Args:
            changes: The result of `changes_of`.
            names: The names of the entity types.
        """
        if self._numbered:
            self.content = self.content.plus(_content_of(changes))
        kinds = changes.column("kind").chunk(0)
        types = changes.column("type").chunk(0)
        versions = changes.column("version").to_numpy()
        # The usual case, one version and one table, needs no groups.
        if (
            len(names) == 1
            and (versions == versions[0]).all()
            and not {*_LEAD} & {*changes.column_names}
        ):
            counts = np.bincount(kinds.to_numpy(), minlength=len(KIND_NAMES)).tolist()
            row = (versions[:1], names, *([each] for each in counts[1:]), [None], [None])
            self._parts.append(pa.table([*row], schema=_SCHEMA))
            return
        columns = {
            "version": changes.column("version"),
            "entity_type": pa.array(names, pa.string()).take(types),
            **{
                name: pc.equal(kinds, pa.scalar(kind, pa.uint8())).cast(pa.int64())
                for kind, name in enumerate(_KINDS, 1)
            },
        }
        for name in _LEAD:
            given = name in changes.column_names
            kind = _SCHEMA.field(name).type
            columns[name] = changes.column(name) if given else pa.nulls(len(kinds), kind)
        self._parts.append(_grouped(pa.table(columns), ("version", "entity_type")))

    def finish(self) -> None:
        """Fill ``table``; call this once, after the last change.

        Raises:
            InvalidRequest: A version has two transaction ids or two timestamps.
        """
        self.table = _joined(self._parts)
        self._parts = []


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Add up tables that have one row for each version and entity type."""
    found = [part for part in parts if part.num_rows]
    if len(found) < 2:
        return found[0] if found else _SCHEMA.empty_table()
    return _grouped(pa.concat_tables(found), ("version", "entity_type"))


def _grouped(rows: pa.Table, by: tuple[str, ...]) -> pa.Table:
    """Return one row of `_SCHEMA` for each group; the least and the greatest value of a lead must be equal."""
    asked = [(name, "sum") for name in _KINDS]
    asked += [(name, how) for name in _LEAD for how in ("min", "max")]
    # Threads cost more than they save for so few columns.
    found = rows.group_by([*by], use_threads=False).aggregate(asked)
    for name in _LEAD:
        low, high = (found.column(f"{name}_{how}") for how in ("min", "max"))
        differ = pc.fill_null(pc.not_equal(low, high), False)
        if pc.any(differ).as_py():
            at = pc.index(differ, True).as_py()
            raise InvalidRequest(
                f"version {found.column('version')[at].as_py()} of the source has more than one {name}: "
                f"{low[at].as_py()!r} and {high[at].as_py()!r}; give each version its own number in "
                "_commit_version"
            )
    columns = {name: found.column(name) for name in by}
    columns |= {name: found.column(f"{name}_sum") for name in _KINDS}
    columns |= {name: found.column(f"{name}_min") for name in _LEAD}
    return pa.table(columns)


def _content_of(changes: pa.Table) -> BatchContent:
    """Return the fingerprint of changes: a sum of hashes of rows, which does not depend on their order."""
    seeds = changes.column("version").to_numpy().astype(np.uint64) * _TIMES
    seeds ^= changes.column("key_hash").to_numpy() ^ changes.column("kind").to_numpy()
    hashes = key_hashes(seeds, changes.column("image").chunk(0))
    return BatchContent(changes.num_rows, int(hashes.sum(dtype=np.uint64)))


class SourceVersions:
    """The versions of a write: what the tasks have reported of them, and the numbers of their records."""

    def __init__(
        self, tallies: Iterable[ChangeTally], entity_types: Iterable[str] = (), version: int = 0
    ) -> None:
        """Add up the reports of the tasks.

        Args:
            tallies: The reports.
            entity_types: Entity types that belong to the write even if it has no row of them.
            version: The version of the source in that case.

        Raises:
            InvalidRequest: A version has two transaction ids or two timestamps.
        """
        parts = [each.table for each in tallies]
        also = [{"version": version, "entity_type": each} for each in entity_types]
        table = _joined(parts)
        if also and not table.num_rows:
            table = pa.Table.from_pylist(also, _SCHEMA)
        leads = table
        if table.num_rows > 1:
            leads = _grouped(table, ("version",)).sort_by("version")
        self.names: list[str] = sorted(pc.unique(table.column("entity_type")).to_pylist())
        """The names of the entity types."""
        self.numbers: npt.NDArray[np.int64] = leads.column("version").to_numpy()
        """The versions of the source, rising; the place of each is its number in the commit."""
        self.ids = leads.column("transaction_id").combine_chunks()
        """The transaction id of each version, or null."""
        self.times = leads.column("timestamp").combine_chunks()
        """The time of each version's commit at the source, in microseconds since 1970, or null."""
        # One code for each version and entity type, rising; the arrays below are in this order.
        types = pc.index_in(table.column("entity_type"), pa.array(self.names, pa.string()))
        codes = self._codes_of(table.column("version").to_numpy(), types.to_numpy())
        order = np.argsort(codes)
        self._codes = codes[order]
        changes = [pc.fill_null(table.column(name), 0).to_numpy()[order] for name in _KINDS]
        self._changes = dict(zip(range(1, len(KIND_NAMES)), changes, strict=True))
        self.rows = sum(int(each.sum()) for each in changes)
        """Number of changes."""
        self.records = sum(changes) - self._changes[PREIMAGE]
        """Number of records of each version and entity type: first, one for each change but preimages."""

    def _codes_of(
        self, versions: npt.NDArray[np.int64], types: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        return np.searchsorted(self.numbers, versions) * max(1, len(self.names)) + types

    @property
    def may_pair(self) -> bool:
        """True if a deletion and an insertion of a version may be one record; then ``records`` is too high."""
        return bool(((self._changes[DELETE] > 0) & (self._changes[INSERT] > 0)).any())

    def forget_records(self) -> None:
        """Set the numbers of records to 0; ``count_records`` counts them."""
        self.records = np.zeros(len(self._codes), np.int64)

    def count_records(self, versions: npt.NDArray[np.int64], types: npt.NDArray[np.int64]) -> None:
        """Count records, given the version and the place in ``names`` of each."""
        codes, counts = np.unique(self._codes_of(versions, types), return_counts=True)
        self.records[np.searchsorted(self._codes, codes)] += counts

    def counts_of(self, number: int) -> dict[str, int]:
        """Return the numbers of records of one version in the commit, by entity type."""
        width = len(self.names)
        start, stop = np.searchsorted(self._codes, (number * width, (number + 1) * width))
        found = zip(
            self._codes[start:stop].tolist(), self.records[start:stop].tolist(), strict=True
        )
        return {self.names[code % width]: count for code, count in found if count}
