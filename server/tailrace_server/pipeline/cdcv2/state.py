"""The state of a stream between batches: files that the newest log entry names as pending.

=========  =================================================================================================
control    one row of JSON (`Control`): frontier, coverage, and the kind of each file
updates    `updates.UPDATES`: each update of an unfinished time once
times      `times.TIMES`
product    for product times, instead of updates and times: one row of JSON, see `product_times`
index      `folding.INDEX`: the last row of each key. A file of a later commit overrides the files of earlier
           commits; the files of one commit (a *tier*) hold different keys
=========  =================================================================================================

The entry that releases versions also names the state after them, so a restart finds both or neither. Files
never change. Each commit that changes updates or times writes new files of them. The index grows by tiers. A
commit merges the newest tiers into its own, as long as the next one has at most twice the rows merged so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest, LogCorrupted
from tailrace_server.pipeline.catalog.pending import read_pending
from tailrace_server.pipeline.cdcv2.folding import INDEX
from tailrace_server.pipeline.cdcv2.updates import SLOTS, joined, place, slots
from tailrace_server.wal.files.documents import PendingSegment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.cdcv2.folding import Last

FORMAT: Final = 1
CONTROL_NAME: Final = "cdcv2-control"
UPDATES_KIND, TIMES_KIND, INDEX_KIND = "updates", "times", "index"
PRODUCT_KIND: Final = "product"
_PLACES: Final = ("message", "announced_at", "received_at")
_CONTROL: Final = pa.schema([pa.field("control", pa.binary(), nullable=False)])


class StateFile(msgspec.Struct, frozen=True):
    """A state file, as the control file describes it."""

    kind: str
    file: PendingSegment
    tier: int = 0
    """For an index file, the batch that wrote it; 0 for other files."""
    part: int = 0
    parts: int = 1
    """The file holds the slots that are ``part`` modulo ``parts``."""

    def has_slots_of(self, part: int, parts: int) -> bool:
        """Return True if the file may hold a slot of hash partition ``part`` of ``parts``."""
        # The file may have been written with another number of partitions: look for a common slot.
        return any(slot % self.parts == self.part and slot % parts == part for slot in range(SLOTS))


class StreamStatistics(msgspec.Struct):
    """Counts since the stream began."""

    messages: int = 0
    updates: int = 0
    """Received updates, including repeated ones."""
    duplicates: int = 0
    dropped_finished: int = 0
    """Updates whose times were already finished."""
    refused: int = 0
    """Messages that were put into quarantine."""
    finished_updates: int = 0
    conflicts: int = 0
    """Contradicting updates that were ignored in favour of the first message."""


class Control(msgspec.Struct):
    """The control document of a stream: everything about the stream except its updates, times and index."""

    entity_type: str
    key: list[str]
    schema: str
    """The text of the Avro schema."""
    start: int = 0
    frontier: int | None = 0
    """Times below this time are finished; None: all times are, and the stream is complete. For product times
    it is only 0 or None.
    """
    antichain: list[tuple[int, ...]] = []
    """The finished frontier of a stream with product times."""
    coverage: list[tuple[int, int | None]] = []
    """The union of the intervals of all progress statements, from the frontier on."""
    next_ordinal: int = 1
    names: dict[int, str] = {}
    """File ordinal → file name, for the files that rows of the state may refer to."""
    files: list[StateFile] = []
    statistics: StreamStatistics = msgspec.field(default_factory=StreamStatistics)
    format: int = FORMAT

    def of_kind(self, kind: str) -> list[StateFile]:
        """Return the files of a kind, older tiers first."""
        # Sort: earlier releases listed the new tier of a large batch before the older tiers.
        return sorted(
            (each for each in self.files if each.kind == kind), key=lambda each: each.tier
        )

    def rows(self, kind: str) -> int:
        """Return the total number of rows in the files of a kind."""
        return sum(each.file.rows for each in self.of_kind(kind))

    def table(self) -> pa.RecordBatch:
        """Return the content of the control file, as a table of one row."""
        return pa.RecordBatch.from_pydict({"control": [msgspec.json.encode(self)]}, _CONTROL)


def read_control(catalog: Path, pending: Sequence[PendingSegment]) -> Control | None:
    """Return the control document of the newest entry; None if the catalog has no CDCv2 stream.

    Raises:
        InvalidRequest: The pending files belong to another source, or to a later release.
        LogCorrupted: The file is damaged.
    """
    found = [file for file in pending if CONTROL_NAME in file.path]
    if not found:
        # Pending files without a control file are open transactions of another source.
        if pending:
            raise InvalidRequest(
                f"catalog {catalog.name} has open transactions of another source; let that ingest "
                "complete them first"
            )
        return None
    text = read_pending(catalog, found[0]).column("control")[0].as_py()
    try:
        control: Control = msgspec.json.decode(text, type=Control)
    except msgspec.DecodeError as error:
        raise LogCorrupted(found[0].path, 0, f"state of cdcv2: {error}") from error
    if control.format > FORMAT:
        raise InvalidRequest(
            f"the state of {catalog.name} was written by a newer tailrace; upgrade this one"
        )
    return control


def ordinals_in(rows: pa.RecordBatch) -> set[int]:
    """Return the ordinals of the files that rows of updates or times refer to."""
    names = [name for name in _PLACES if name in rows.schema.names]
    numbers = np.concatenate([rows.column(name).to_numpy() for name in names])
    return {place(number).ordinal for number in np.unique(numbers).tolist() if number >= 0}


def read_rows(catalog: Path, files: Iterable[StateFile], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of some files, in the order of the files.

    Raises:
        LogCorrupted: A file is missing or damaged.
    """
    batches: list[pa.RecordBatch] = []
    for each in files:
        batches.extend(read_pending(catalog, each.file).cast(schema).to_batches())
    return joined(batches, schema)


class KeyIndex:
    """Looks keys up in the index, the newest tier first. It caches the files that it has read."""

    def __init__(self, catalog: Path) -> None:
        """Start with an empty cache."""
        self.catalog = catalog
        self._tables: dict[str, tuple[Any, pa.RecordBatch]] = {}

    def __reduce__(self) -> tuple[type[KeyIndex], tuple[Path]]:
        """Pickle only the folder, not the cache."""
        return KeyIndex, (self.catalog,)

    def last_rows(
        self,
        files: Sequence[StateFile],
        hashed: np.ndarray[Any, np.dtype[np.uint64]],
        keys: Sequence[str],
    ) -> dict[str, Last]:
        """Return the last row of each key; keys that the index does not have are left out.

        Args:
            files: The files of the index, older tiers first.
            hashed: The hash of each key.
            keys: The keys, possibly repeated.
        """
        found: dict[str, Last] = {}
        needed = set(keys)
        asked = np.unique(hashed)
        for each in reversed(files):
            hashes, rows = self._table(each)
            # Compare hashes first: only rows with an equal hash are converted to Python values.
            places = np.flatnonzero(np.isin(hashes, asked))
            if not len(places):
                continue
            hits = rows.take(pa.array(places))
            columns = (hits.column(name).to_pylist() for name in ("key", "image", "count"))
            for key, image, count in zip(*columns, strict=True):
                if key in needed:
                    # The newest tier comes first, so the first row found for a key is its last row.
                    found.setdefault(key, (image, count))
        return found

    def keep(self, files: Iterable[StateFile]) -> None:
        """Keep only these files in the cache."""
        paths = {each.file.path for each in files}
        self._tables = {path: held for path, held in self._tables.items() if path in paths}

    def _table(self, each: StateFile) -> tuple[Any, pa.RecordBatch]:
        held = self._tables.get(each.file.path)
        if held is None:
            rows = read_rows(self.catalog, [each], INDEX)
            held = self._tables[each.file.path] = (rows.column("hash").to_numpy(), rows)
        return held


def merged(tables: Sequence[pa.RecordBatch], *, oldest: bool) -> pa.RecordBatch:
    """Return the last row of each key.

    Args:
        tables: Tables of `INDEX`, older tables first.
        oldest: True if there is no older tier. Keys without a row can then be left out.
    """
    rows = joined([table for table in tables if table.num_rows] or [tables[0]], INDEX)
    if rows.num_rows == 0:
        return rows
    keys = rows.column("key")
    # Newer tables come last, so the row with the highest number is the last row of its key.
    numbered = pa.table({"key": keys, "row": pa.array(np.arange(len(keys)))})
    last = numbered.group_by("key").aggregate([("row", "max")]).column("row_max")
    kept = rows.take(pa.array(np.sort(last.to_numpy())))
    if oldest:
        kept = kept.filter(pc.not_equal(kept.column("count"), 0))
    return kept


def share_of(rows: pa.RecordBatch, part: int, parts: int) -> pa.RecordBatch:
    """Return the rows of one hash partition."""
    if parts == 1:
        return rows
    mine = slots(rows.column("hash").to_numpy()) % np.uint16(parts) == part
    return rows if mine.all() else rows.filter(pa.array(mine))


class Tier(NamedTuple):
    """The index files of one commit."""

    number: int
    files: list[StateFile]

    @property
    def rows(self) -> int:
        """Total number of keys in the files."""
        return sum(each.file.rows for each in self.files)


def tiers(files: Iterable[StateFile]) -> list[Tier]:
    """Return the index files grouped by tier, oldest tier first."""
    found: dict[int, Tier] = {}
    for each in files:
        found.setdefault(each.tier, Tier(each.tier, [])).files.append(each)
    return [found[number] for number in sorted(found)]


def tiers_to_merge(found: Sequence[Tier], rows: int, rows_max: int) -> int:
    """Return how many of the newest tiers to merge into a new tier.

    Args:
        found: The tiers, oldest first.
        rows: The number of rows in the new tier.
        rows_max: The most rows after the merge.
    """
    count, total = 0, rows
    for tier in reversed(found):
        # A merge makes a tier larger by at least half, so a row is rewritten only a logarithmic number of
        # times.
        if tier.rows > 2 * total or tier.rows + total > rows_max:
            break
        total += tier.rows
        count += 1
    return count
