"""Logs for the tests of reads, and the rows that plain Python makes of their records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from tailrace.criteria import Area, Operation
from tailrace_server.log_read.plan import plan, read_part
from tailrace_server.log_read.request import ReadRequest, Shape
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.wal.base.tables import naive
from tests.server.wal.logs import rows_of
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.server.wal.logs import Row

KEYED = SchemaMapping.parse(
    """
    [entity_types.order]
    key = ["id"]
    [entity_types.order.columns]
    id = { type = "VARCHAR" }
    value = { type = "INTEGER" }
    [entity_types.item.columns]
    row = { type = "VARCHAR" }
    """
)
CAPTURE = (
    *("version", "index", "area", "operation", "entity_type", "primary_key", "changed"),
    *("change", "before", "after"),
)
"""Names of the columns of captures that the records in these tests know."""


class Change(NamedTuple):
    """A change row, in plain Python."""

    kind: str
    image: tuple[Any, ...]
    at: tuple[int, int]


def write(root: Path, history: Iterable[Sequence[Mutation]]) -> None:
    """Write transactions to the catalog shop, whose table ``order`` has a key; each is a commit."""
    known = [
        Mutation("order", "0", after=b'{"id":"0","value":1}'),
        Mutation("item", '{"row":"0"}', after=b'{"row":"0"}', change=b'{"diff":1}'),
    ]
    with OlderWriter.open(root, "shop", mapping=KEYED) as writer:
        writer.append(known)
        for mutations in history:
            writer.append(mutations)
            writer.commit(publish=True)


def request(root: Path, entity_type: str | None = "order", **more: Any) -> ReadRequest:
    return ReadRequest(log=root, catalog="shop", entity_type=entity_type, **more)


def read(root: Path, entity_type: str | None = "order", **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a read, each of whose parts opens the log itself."""
    found = plan(request(root, entity_type, **more))
    batches = [batch for part in found.parts for batch in read_part(part)]
    assert all(each.schema.equals(found.schema) for each in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def values(entity_type: str, key: str | None, image: bytes | None) -> tuple[Any, ...]:
    """Return the columns of a row of ``order`` or ``item``, the key's value standing in."""
    found = {} if image is None else orjson.loads(image)
    if entity_type == "order":
        return found.get("id", key), found.get("value")
    return (found.get("row"),)


def columns_of(entity_type: str, row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the same of a row that was read."""
    names = ("id", "value") if entity_type == "order" else ("row",)
    return tuple(row[name] for name in names)


def expected_changes(records: Sequence[Row], entity_type: str) -> list[list[Change]]:
    """Return the change rows of each record; those of a truncate are in any order."""
    found = []
    for place, record in enumerate(records):
        _, at, index, area, operation, name, _, key, changed, change, before, after, _ = record
        if area != Area.DATA or name != entity_type:
            continue
        where = at, index
        old, new = (values(entity_type, key, each) for each in (before, after))
        if key is None:
            table = naive(records[:place], at, entity_type)
            gone = [
                Change("delete", values(entity_type, each, kept.image), where)
                for each, kept in table.items()
                for _ in range(kept.multiplicity)
            ]
            found.append(sorted(gone))
        elif change is not None and changed is None and change.startswith(b'{"diff":'):
            diff = orjson.loads(change)["diff"]
            image = new if after is not None else old
            found.append([Change("insert" if diff > 0 else "delete", image, where)] * abs(diff))
        elif operation != Operation.UPSERT:
            found.append([Change("delete", old, where)])
        elif changed is None:
            found.append([Change("insert", new, where)])
        else:
            pre = [Change("update_preimage", old, where)] if before is not None else []
            found.append([*pre, Change("update_postimage", new, where)])
    return [each for each in found if each]


def changes_read(rows: Iterable[dict[str, Any]], entity_type: str) -> list[Change]:
    """Return change rows that were read, with the place that their position names."""
    found = []
    for row in rows:
        version, index = map(int, row["_position"].split(".")[2:4])
        assert version == row["_commit_version"]
        found.append(Change(row["_change_type"], columns_of(entity_type, row), (version, index)))
    return found


def by_record(changes: Iterable[Change], records: Sequence[Row]) -> list[list[Change]]:
    """Group change rows by record, with those of a truncate sorted."""
    truncates = {(each[1], each[2]) for each in records if each[7] is None}
    groups: list[list[Change]] = []
    for each in changes:
        if groups and groups[-1][0].at == each.at:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [sorted(each) if each[0].at in truncates else each for each in groups]


def applied(state: Iterable[tuple[Any, ...]], changes: Iterable[Change], entity_type: str) -> Any:
    """Return a table after changes, as a program applies them: by key, or by counting equal rows."""
    if entity_type == "item":
        counts = Counter(state)
        for kind, image, _ in changes:
            counts[image] += {"insert": 1, "delete": -1}[kind]
        return {image: count for image, count in counts.items() if count}
    table = {image[0]: image for image in state}
    for kind, image, _ in changes:
        if kind == "delete":
            table.pop(image[0], None)
        elif kind != "update_preimage":
            table[image[0]] = image
    return table


def state_read(root: Path, entity_type: str, at: int, rows_per_part: int) -> list[tuple[Any, ...]]:
    rows = read(root, entity_type, shape=Shape.STATE, at=at, rows_per_part=rows_per_part)
    return [columns_of(entity_type, row) for row in rows]


def records_of(root: Path) -> list[Row]:
    return rows_of(root / "shop")


def capture_of(record: Row) -> tuple[Any, ...]:
    """Return a record as a capture: the columns of CAPTURE."""
    _, at, index, area, operation, name, _, key, changed, *bodies, _ = record
    texts = [None if each is None else each.decode() for each in bodies]
    words = Area(area).name.lower(), Operation(operation).name.lower()
    return (at, index, *words, name, key, changed, *texts)
