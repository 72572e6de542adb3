"""Splits, the blocks of files that make up a batch: the lines before each, and the snapshot rows in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.changes import SNAPSHOT, Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tailrace_server.pipeline.sources.source import Source
    from tailrace_server.pipeline.transactions.snapshot_cuts import Cut


def recut(changes: Iterable[Change], cuts: Sequence[Cut]) -> Iterator[Change]:
    """Give snapshot rows the key of the version that they belong to, and their number in all splits."""
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
    """Return (file, block) → lines of the file before the block."""
    before: dict[tuple[str, int], int] = {}
    lines: dict[str, int] = {}
    for split in sorted(splits, key=lambda change: (change.file or "", change.block or 0)):
        file = split.file or ""
        before[file, split.block or 0] = lines.get(file, 0)
        lines[file] = lines.get(file, 0) + (split.line or 0)
    return before


def lines_to_skip(
    splits: Iterable[tuple[str, int, int]], consumed: Callable[[str], int]
) -> dict[tuple[str, int], int]:
    """Return (file, block) → lines at its head that the log holds already.

    Args:
        splits: File, block and number of lines of each split of a batch.
        consumed: File → lines at its head that the log holds.
    """
    skip: dict[tuple[str, int], int] = {}
    before: dict[str, int] = {}
    for file, block, lines in sorted(splits):
        start = before.get(file, 0)
        before[file] = start + lines
        held = min(max(consumed(file) - start, 0), lines)
        if held:
            skip[file, block] = held
    return skip


def positions(splits: Iterable[Change], source: Source) -> dict[str, int | str]:
    """Return the source positions that a batch advances: lines consumed of each file."""
    lines: dict[str, int | str] = {}
    for split in splits:
        if not split.file:
            continue
        name = source.position_name(split.file)
        lines[name] = int(lines.get(name, 0)) + (split.line or 0)
    return lines
