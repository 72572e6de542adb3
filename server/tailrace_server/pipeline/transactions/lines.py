"""The lines of a batch as Spark delivers them: their splits, and how they are decoded and counted.

A *split* is a block of a file. The stream selects the columns of `LINES_SCHEMA`: the line's bytes, its file
and its split. The rows of a split are contiguous and in the order of the file.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.catalog.fillings import needs_last_image
from tailrace_server.pipeline.input.change import (
    CHANGE,
    DELETE,
    QUARANTINED,
    SNAPSHOT,
    SPLIT,
    Change,
    FileSplit,
    is_effect,
    to_batch,
)
from tailrace_server.pipeline.input.source import ColumnDecoder
from tailrace_server.pipeline.input.table_bindings import origins_text
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.spark.checkpoint import local_path
from tailrace_server.pipeline.spark.pieces import encoded, frame, without_garbage_collection
from tailrace_server.pipeline.transactions.driver_state import tallies_table
from tailrace_server.pipeline.transactions.pieces import PieceKind, rows_batch
from tailrace_server.pipeline.transactions.tally import rows_of_types, tally
from tailrace_server.pipeline.transactions.tally_columns import tally_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tailrace_server.pipeline.input.source import DecodedMessage, DecodeLine, Source
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.run.progress import IngestCounters
    from tailrace_server.pipeline.transactions.grouping import Plan
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.pipeline.transactions.tally import BatchSummary, Cut, Tally


def recut(changes: Iterable[Change], cuts: Sequence[Cut]) -> Iterator[Change]:
    """Yield the changes. A snapshot row gets the key of its cut (one future version) and its number."""
    by_run: dict[str, list[Cut]] = {}
    for cut in cuts:
        by_run.setdefault(cut.run_key, []).append(cut)
    for change in changes:
        key = change.transaction or ""
        if not key.startswith(SNAPSHOT):
            yield change
            continue
        for cut in by_run[key]:
            if cut.start <= change.total_order < cut.stop:
                order = cut.offset + change.total_order
                yield change._replace(transaction=cut.key, total_order=order)
                break


def lines_before(splits: Iterable[Change]) -> dict[tuple[str, int], int]:
    """Return (file, block) → number of lines of the file before the block, given the SPLIT rows of a batch."""
    before: dict[tuple[str, int], int] = {}
    lines: dict[str, int] = {}
    # Blocks of a file may be decoded by several tasks, so only here is it known how many lines precede each.
    for split in sorted(splits, key=lambda change: (change.file or "", change.block or 0)):
        file = split.file or ""
        before[file, split.block or 0] = lines.get(file, 0)
        lines[file] = lines.get(file, 0) + (split.line or 0)
    return before


def lines_to_skip(
    splits: Iterable[tuple[str, int, int]], consumed: Callable[[str], int]
) -> dict[tuple[str, int], int]:
    """Return (file, block) → number of lines at the start of the block that the log has already.

    Args:
        splits: File, block and number of lines of each split of a batch.
        consumed: Returns the number of lines at the start of a file that the log has.
    """
    skip: dict[tuple[str, int], int] = {}
    before: dict[str, int] = {}
    # A file is consumed from its start. Its consumed lines may end within a block, so they are divided among
    # the blocks in order.
    for file, block, lines in sorted(splits):
        start = before.get(file, 0)
        before[file] = start + lines
        held = min(max(consumed(file) - start, 0), lines)
        if held:
            skip[file, block] = held
    return skip


def positions(splits: Iterable[Change], source: Source) -> dict[str, int | str]:
    """Return the source positions of a batch: for each of its files, the number of lines consumed."""
    lines: dict[str, int | str] = {}
    for split in splits:
        if not split.file:
            continue
        name = source.position_name(split.file)
        lines[name] = int(lines.get(name, 0)) + (split.line or 0)
    return lines


_PIECE_BYTES: Final = 8 << 20
"""Approximate maximum size of the lines that become one piece."""
_TALLIES_AT_ONCE: Final = 8_192
"""Number of tallies that a task holds before it sends them."""
LINES_SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("file", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("modified_us", pa.int64()),
    ]
)


class Decoded(NamedTuple):
    """The decoded lines of a batch."""

    changes: list[Change]
    skipped: int
    """Number of lines that were skipped because the log has them already."""


class SplitDecoder:
    """Decodes and counts the lines of splits, one split after the other.

    The caller feeds the lines of a split in order. Runs in tasks and in the driver; keeps no row.
    """

    def __init__(
        self, decode: DecodeLine | ColumnDecoder, skip: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Begin without any split.

        Args:
            decode: Decodes a line; see `Source.line_decoder`.
            skip: (file, block) → number of lines at the start of the block that an earlier run consumed.
                These lines are not decoded; the SPLIT row counts them as ignored.
        """
        self._decode = decode
        self._skip = skip or {}
        self._lines: dict[FileSplit, int] = {}
        self._messages: dict[FileSplit, int] = {}
        self._ignored: dict[FileSplit, int] = {}
        self._kinds: dict[FileSplit, Counter[str]] = {}
        self._origins: dict[FileSplit, dict[tuple[str, str, str, str], int]] = {}
        """Split → origin of its rows (the fields of `RowOrigin`) → line of the first row of that origin."""

    def feed(self, split: FileSplit, lines: Iterable[bytes]) -> Iterator[Change]:
        """Yield the changes in some lines, in order; a message that is empty or not about a row has none."""
        number = self._lines.get(split, 0)
        skip = self._skip.get((split.file, split.block), 0)
        origins = self._origins.setdefault(split, {})
        ignored = 0
        more = 0  # messages beyond the first of their lines
        for line in lines:
            number += 1
            if number <= skip:
                ignored += 1
                continue
            decoded = self._decode(split, number, line)
            # A line has one message, or an iterable of several.
            if decoded is None or isinstance(decoded, (Change, str)):
                several: Iterable[DecodedMessage] = (decoded,)
            else:
                several = decoded
            more -= 1
            for change in several:
                more += 1
                if isinstance(change, Change):
                    if is_effect(change):  # its message has been counted as a schema change
                        more -= 1
                    # Remember the first line of each origin: it decides which table an entity type is bound to.
                    if change.kind == CHANGE and change.table is not None:
                        origin = (
                            *(change.entity_type or "", change.table),
                            *(change.source or "", change.key_names or ""),
                        )
                        if origin not in origins:
                            origins[origin] = number
                    yield change
                    continue
                ignored += 1
                if change is not None:
                    self._kinds.setdefault(split, Counter())[change] += 1
        self._messages[split] = (
            self._messages.get(split, 0) + number - self._lines.get(split, 0) + more
        )
        self._lines[split] = number
        self._ignored[split] = self._ignored.get(split, 0) + ignored

    def feed_columns(
        self, split: FileSplit, lines: pa.BinaryArray
    ) -> tuple[pa.RecordBatch | None, list[Change]]:
        """Decode some lines, by columns if possible.

        Returns:
            The rows that were decoded by columns, of `ROWS`; None if there are none. Then the other changes.
        """
        begun = self._lines.get(split, 0)
        decoder, found = self._decode, None
        if not isinstance(decoder, ColumnDecoder):
            return None, [*self.feed(split, lines.to_pylist())]
        if self._skip.get((split.file, split.block), 0) <= begun:
            found = decoder.columns(split, begun + 1, lines)
        if found is None or not len(found.lines):
            return None, [*self.feed(split, lines.to_pylist())]
        # 1. Decode the other lines. A row before such a line may change how it is decoded.
        others = np.setdiff1d(np.arange(len(lines)), found.lines, assume_unique=True)
        changes: list[Change] = []
        done = 0
        for place, line in zip(others.tolist(), lines.take(pa.array(others)), strict=True):
            if place > done:
                decoder.row_came(split)
            self._lines[split] = begun + place
            changes += self.feed(split, [line.as_py()])
            done = place + 1
        if done < len(lines):
            decoder.row_came(split)
        # 2. Count the rows, as `feed` does.
        self._lines[split] = begun + len(lines)
        self._messages[split] = self._messages.get(split, 0) + len(found.lines)
        self._ignored.setdefault(split, 0)
        origins = self._origins.setdefault(split, {})
        for origin, place in found.origins.items():
            number = begun + place + 1
            origins[origin] = min(number, origins.get(origin, number))
        return found.rows, changes

    def finish(self) -> Iterator[Change]:
        """Yield one SPLIT row for each split that was fed."""
        for split, lines in self._lines.items():
            yield Change(
                kind=SPLIT,
                place=split.place(0),
                total_order=self._messages[split],
                number=self._ignored[split],
                reason=json.dumps(self._kinds[split]) if split in self._kinds else None,
                raw=origins_text(dict(sorted(self._origins[split].items(), key=itemgetter(1)))),
                file=split.file,
                block=split.block,
                line=lines,
            )


def runs(
    table: pa.Table | pa.RecordBatch, folder: str
) -> Iterator[tuple[FileSplit, pa.BinaryArray]]:
    """Yield the splits of a table with their lines, in the order of the table.

    Args:
        table: A table of `LINES_SCHEMA`.
        folder: The input folder; files are named by their path below it.
    """
    rows = table.num_rows
    if not rows:
        return
    files = pc.dictionary_encode(_whole(table.column("file")))
    blocks = _whole(table.column("block")).to_numpy()
    codes = files.indices.to_numpy()
    # The rows of a split are contiguous, so a split begins wherever file or block changes.
    starts = [0, *((codes[1:] != codes[:-1]) | (blocks[1:] != blocks[:-1])).nonzero()[0] + 1, rows]
    values = table.column("value")
    modified = table.column("modified_us")
    for start, stop in itertools.pairwise(starts):
        path = relative_file(files.dictionary[codes[start]].as_py(), folder)
        split = FileSplit(path, int(blocks[start]), modified[start].as_py())
        yield split, values.slice(start, stop - start)


def decode_lines(
    table: pa.Table,
    settings: IngestSettings,
    bindings: Bindings,
    consumed: Callable[[str], int],
) -> Decoded:
    """Decode all lines of a batch.

    Args:
        table: The lines, a table of `LINES_SCHEMA`.
        settings: The settings of the ingest, with the source and the input folder.
        bindings: The catalog's bindings before the batch.
        consumed: Returns the number of lines at the start of a file that the log has already.
    """
    splits = sorted(runs(table, str(settings.input)), key=lambda run: run[0])
    counted = ((split.file, split.block, len(values)) for split, values in splits)
    skip = lines_to_skip(counted, consumed)

    def decoded(bindings: Bindings) -> tuple[list[Change], list[Change]]:
        decoder = SplitDecoder(settings.line_decoder(bindings), skip)
        changes = [
            change for split, values in splits for change in decoder.feed(split, values.to_pylist())
        ]
        return changes, [*decoder.finish()]

    # If the batch itself adds bindings that some of its rows do not fit, decode again: now those rows go to
    # quarantine (`table_bindings`).
    changes, counts = decoded(bindings)
    found = bindings.after(counts)
    if not found.admits(counts):
        changes, counts = decoded(found)
    return Decoded([*changes, *counts], sum(skip.values()))


def relative_file(uri: str, folder: str) -> str:
    """Return a file's path below the input folder; empty for lines that come from no file."""
    return os.path.relpath(local_path(uri), folder) if uri else ""


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def kinds_of(splits: Iterable[Change]) -> Counter[str]:
    """Return the number of messages that are not about a row, by their kind, given SPLIT rows."""
    return sum((Counter(json.loads(each.reason)) for each in splits if each.reason), Counter())


def count_batch(
    counters: IngestCounters, given: BatchSummary, plan: Plan, set_aside: SetAside
) -> None:
    """Add a committed batch or flush to the counters.

    Args:
        counters: The counters of the ingest.
        given: The summary of the batch.
        plan: The plan that was committed.
        set_aside: The rows that went to quarantine at the commit, in addition to the batch's lines.
    """
    counters.lines += sum(split.line or 0 for split in given.splits)
    counters.messages += sum(split.total_order for split in given.splits)
    counters.ignored += sum(split.number or 0 for split in given.splits) - given.skipped
    counters.ignored_by_kind += kinds_of(given.splits)
    counters.skipped += given.skipped
    counters.rows += sum(t.rows for t in given.tallies.values())
    counters.count_set_aside(given.quarantined)
    counters.count_set_aside(set_aside)
    counters.count_by_entity_type(given.rows, given.quarantined, set_aside)
    counters.count_shapes(given.quarantined, lines_before(given.splits))
    counters.versions += len(plan.released)
    counters.late += sum(released.late_of is not None for released in plan.released)
    newest = [r.tally.timestamp for r in plan.released if r.tally.timestamp is not None]
    if newest:
        counters.newest_us = max(*newest, counters.newest_us or 0)


class DecodedSummary(NamedTuple):
    """The summary of the lines that a task decoded, without their tallies."""

    rows: Counter[str]
    """As in `BatchSummary.rows`."""
    splits: list[Change]
    quarantined: SetAside
    lacking: int
    """Number of changes that may lack values (`fillings.needs_last_image`)."""
    image_bytes: int
    """Size of all images; 0 if images are not filled."""


@dataclass(frozen=True)
class LineDecoder:
    """Decodes lines in tasks. The driver gets tallies and a summary; rows and unusable lines stay in Spark."""

    settings: IngestSettings
    skip: Mapping[tuple[str, int], int]
    """As in `SplitDecoder`."""
    bindings: Bindings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode batches of `LINES_SCHEMA` to pieces."""
        with without_garbage_collection():
            yield from self._decode(batches)

    def _decode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = SplitDecoder(self.settings.line_decoder(self.bindings), self.skip)
        found = _DecodedPieces(self.settings)
        for batch in batches:
            at_once = max(1, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
            for split, values in runs(batch, str(self.settings.input)):
                for start in range(0, len(values), at_once):
                    lines = values.slice(start, at_once)
                    if self.settings.makes_images_whole:
                        yield from found.take([*decoder.feed(split, lines.to_pylist())])
                        continue
                    rows, changes = decoder.feed_columns(split, lines)
                    yield from found.take(changes, rows)
        yield from found.take(list(decoder.finish()))
        yield from found.end()


class _DecodedPieces:
    """The decoded changes of a task, on their way to pieces; tallies are sent before they become many."""

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._tallies: dict[str, Tally] = {}
        self._splits: list[Change] = []
        self._rows: Counter[str] = Counter()
        self._quarantined = SetAside()
        self._lacking = self._image_bytes = 0

    def take(
        self, changes: Sequence[Change], columns: pa.RecordBatch | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of some changes of one split, and of rows that were decoded by columns."""
        tallies = tally(changes, 0.0)
        if columns is not None:
            table = tally_columns(columns, tallies)
            kept = columns.filter(pc.not_equal(columns.column("operation"), DELETE))
            for each in pc.value_counts(kept.column("entity_type")).to_pylist():
                self._rows[each["values"]] += each["counts"]
            yield frame([(0, PieceKind.TALLIES, encoded(table, compressed=True))])
            yield frame([(0, PieceKind.ROWS, encoded(columns, compressed=True))])
        for key, part in tallies.items():
            before = self._tallies.get(key)
            self._tallies[key] = part if before is None else before.plus(part)
        rows = [change for change in changes if change.kind == CHANGE]
        if rows:
            self._rows.update(rows_of_types(rows))
            batch = rows_batch(rows)
            if self._settings.makes_images_whole:
                self._image_bytes += batch.column("before").nbytes + batch.column("after").nbytes
                self._lacking += sum(needs_last_image(row, self._settings) for row in rows)
            yield frame([(0, PieceKind.ROWS, encoded(batch, compressed=True))])
        if len(rows) < len(changes):
            self._splits += [change for change in changes if change.kind == SPLIT]
            aside = [change for change in changes if change.kind == QUARANTINED]
            if aside:
                self._quarantined.add(SetAside.of(aside, self._settings.source.tells_shape))
                yield frame([(0, PieceKind.QUARANTINED, encoded(to_batch(aside), compressed=True))])
        if len(self._tallies) >= _TALLIES_AT_ONCE:
            yield self._tallied()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining tallies and the summary."""
        if self._tallies:
            yield self._tallied()
        summary = DecodedSummary(
            *(self._rows, self._splits, self._quarantined),
            *(self._lacking, self._image_bytes),
        )
        yield frame([(0, PieceKind.DECODED, pickle.dumps(summary))])

    def _tallied(self) -> pa.RecordBatch:
        table = tallies_table(self._tallies.values())
        self._tallies.clear()
        return frame([(0, PieceKind.TALLIES, encoded(table, compressed=True))])
