"""What the tests of state share: a table as plain Python folds it, and logs that are hard to fold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace_server.wal.base.bases import newest_bases
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.base.winners import FoldBounds
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import rows_of
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.errors import LogCorrupted
    from tailrace_server.wal.base.state_rows import StateRows
    from tests.server.wal.logs import Row


class Kept(NamedTuple):
    """A row of a table's state, in plain Python."""

    at: tuple[int, int]
    """Version and index of the change that it stands for."""
    multiplicity: int
    image: bytes | None


Table = dict[str, Kept]
"""Key → its row."""


def naive(catalog: Path | Sequence[Row], version: int, *names: str) -> Table:
    """Fold the records of an entity type up to a version, one after the other; under all of its names."""
    records = rows_of(catalog) if isinstance(catalog, Path) else catalog
    table: Table = {}
    counts: dict[str, int] = {}
    for record in records:
        _, at, index, area, operation, entity_type, _, key, changed, change, _, after, _ = record
        if area != Area.DATA or entity_type not in names or at > version:
            continue
        if key is None:
            table, counts = {}, {}
            continue
        table.pop(key, None)
        count = 1
        if changed is None and change is not None and change.startswith(b'{"diff":'):
            count = counts[key] = counts.get(key, 0) + orjson.loads(change)["diff"]
        if operation == Operation.UPSERT:
            table[key] = Kept((at, index), count, after)
    return table


def as_table(parts: Iterator[StateRows] | Sequence[StateRows]) -> Table:
    """Return rows of a state as plain Python, having checked their order."""
    table: Table = {}
    places = []
    for rows in parts:
        places += [rows.place(row) for row in range(len(rows))]
        columns = (
            rows.primary_keys.to_pylist(),
            zip(rows.versions.tolist(), rows.indexes.tolist(), strict=True),
            rows.counts.tolist(),
            rows.images.to_pylist(),
        )
        for key, at, count, image in zip(*columns, strict=True):
            assert key not in table
            table[key] = Kept(at, count, image)
    assert places == sorted(places)
    return table


def state(
    root: Path,
    entity_type: str = "order",
    version: int | None = None,
    on_damage: Callable[[LogCorrupted], None] | None = None,
) -> Table:
    """Return a table of the catalog shop, by default as of the newest version."""
    log = open_catalog(root, "shop")
    with BatchReader(log.path) as reader:
        at = log.view.published if version is None else version
        return as_table(table_state(log.view, reader, entity_type, at, on_damage).parts())


def row_files(root: Path) -> list[Path]:
    """Return the files of rows of all bases of the catalog shop, named or not."""
    return sorted((root / "shop" / "bases" / "rows").glob("*"))


def versions_of_bases(root: Path) -> list[int]:
    """Return the versions that the catalog shop has bases of."""
    log = CommitLog.open(root / "shop")
    return [each.version for each in newest_bases(log.store, log.uuid).bases]


TINY = FoldBounds(rows=2, key_bytes=64, image_rows=2, image_bytes=64, part_rows=2, part_bytes=64)
"""So few that every table needs several passes, windows and parts."""

KEYS = ("1", "2", "3", "ä", "k" * 40)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Mutation]]:
    """Return transactions of a table with keys, of one that is counted, and of a third that stays as it is."""
    counts: dict[str, int] = {}
    transactions = []
    for _ in range(draw(st.integers(1, 8))):
        mutations = []
        for number in range(draw(st.integers(0, 6))):
            key = draw(st.sampled_from(KEYS))
            kind = draw(
                st.sampled_from(["upsert", "remove", "expire", "truncate", "bare", "count"])
            )
            image = b'{"id":"%s","value":%d}' % (key.encode(), draw(st.integers(0, 9)))
            match kind:
                case "upsert":
                    mutations.append(Mutation("order", key, after=image))
                case "bare":
                    mutations.append(Mutation("order", key, change=b'{"value":%d}' % number))
                case "remove" | "expire":
                    operation = Operation.REMOVE if kind == "remove" else Operation.EXPIRE
                    mutations.append(Mutation("order", key, operation, before=image))
                case "truncate":
                    entity_type = draw(st.sampled_from(["order", "item"]))
                    mutations.append(Mutation(entity_type, None, Operation.REMOVE))
                    if entity_type == "item":
                        counts = {}
                case "count":
                    row = f'{{"row":"{key}"}}'
                    diff = draw(st.sampled_from([-2, -1, 1, 2, 3]))
                    counts[row] = counts.get(row, 0) + diff
                    gone = counts[row] == 0
                    operation = Operation.REMOVE if gone else Operation.UPSERT
                    image = row.encode()
                    mutations.append(
                        Mutation(
                            "item",
                            row,
                            operation,
                            before=image if gone else None,
                            after=None if gone else image,
                            change=b'{"diff":%d}' % diff,
                        )
                    )
        transactions.append(mutations)
    return transactions


def write_history(root: Path, history: Sequence[Sequence[Mutation]]) -> None:
    """Write transactions to the catalog shop, the entity types of all being known from the first on."""
    known = [
        Mutation("order", "0", after=b'{"id":"0","value":1}'),
        Mutation("item", '{"row":"0"}', after=b'{"row":"0"}', change=b'{"diff":1}'),
    ]
    with OlderWriter.open(root, "shop") as writer:
        writer.append(known)
        for mutations in history:
            writer.append(mutations)
            writer.commit()


def rename(root: Path, before: str, after: str, mutations: Sequence[Mutation] = ()) -> None:
    """Rename an entity type of the catalog shop, in a version with some mutations."""
    mapping = SchemaMapping.parse(f'[entity_types.{after}]\nrenamed_from = "{before}"')
    with LogWriter.open(root, "shop", mapping=mapping) as writer:
        writer.append(list(mutations))
