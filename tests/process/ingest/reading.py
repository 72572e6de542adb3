"""What a log holds, as plain values, and what must hold of any log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from tailrace.criteria import Area, Operation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from pathlib import Path


class Record(NamedTuple):
    """A record of a log."""

    version: int
    place: int
    area: int
    operation: int
    entity_type: str | None
    primary_key: str | None
    changed: list[str] | None
    change: bytes | None
    before: bytes | None
    after: bytes | None


def records(catalog: Path) -> list[Record]:
    """Return every published record of a catalog, and check that positions and leads are right."""
    view = CommitLog.open(catalog).view
    found: list[Record] = []
    with BatchReader(catalog) as reader:
        for place in range(len(view)):
            ref = view.batch(place)
            head = reader.head(ref)
            bodies = reader.body(ref, ("change", "before", "after"))
            types = [head.entity_types[c] if c >= 0 else None for c in head.type_codes.tolist()]
            columns: list[list[Any]] = [
                head.versions.tolist(),
                head.indexes.tolist(),
                head.areas.tolist(),
                head.operations.tolist(),
                types,
                head.primary_keys.to_pylist(),
                head.changed.to_pylist(),
                *(bodies[name].to_pylist() for name in ("change", "before", "after")),
            ]
            found.extend(map(Record._make, zip(*columns, strict=True)))
    check(found)
    return found


def check(found: list[Record]) -> None:
    """Versions are dense from 1, indexes dense from 0, and each lead counts its version's records."""
    expected, left = (1, 0), 0
    for record in found:
        if record.place == 0:
            assert left == 0
            assert (record.version, record.operation) == (expected[0], Operation.TRANSACTION)
            left = lead(record)["mutation_count"]
            expected = (record.version + 1, 0)
        else:
            assert record.version == expected[0] - 1
            left -= 1
    assert left == 0
    positions = [(record.version, record.place) for record in found]
    assert positions == sorted(set(positions))


def data(catalog: Path) -> list[Record]:
    """Return the published records of rows: no leads, no changes of the schema."""
    return [record for record in records(catalog) if record.area == Area.DATA]


def lead(record: Record) -> dict[str, Any]:
    """Return what a lead record says."""
    assert record.after is not None
    body: dict[str, Any] = orjson.loads(record.after)
    return body


def leads(catalog: Path) -> list[dict[str, Any]]:
    """Return what the leads of a catalog say, by version."""
    return [lead(record) for record in records(catalog) if record.place == 0]


def published(catalog: Path) -> int:
    """Return the published version of a catalog."""
    return CommitLog.open(catalog).view.published
