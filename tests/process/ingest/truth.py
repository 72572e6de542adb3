"""What a log must hold after the shop's feed has been ingested, whatever happened on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import Area, Operation
from tailrace_server.sample_shop.topics import net_changes
from tests.process.ingest.reading import lead, records

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.sample_shop.topics import Feed

Net = tuple[str | None, str | None, bytes | None, bytes | None]


def check_against_truth(catalog: Path, feed: Feed) -> None:
    """Compare a log with what the shop did, transaction by transaction, byte for byte."""
    snapshot: list[Net] = []
    versions: list[list[Net]] = []
    for record in records(catalog):
        if record.place == 0:
            rows = snapshot if lead(record).get("snapshot") else []
            if rows is not snapshot:
                versions.append(rows)
            continue
        if record.area == Area.SCHEMA:
            continue
        assert record.operation == (Operation.REMOVE if record.after is None else Operation.UPSERT)
        rows.append((record.entity_type, record.primary_key, record.before, record.after))
    wanted = [
        [(c.entity_type, c.primary_key, _bytes(c.before), _bytes(c.after)) for c in net_changes(t)]
        for t in feed.transactions
    ]
    assert sorted(snapshot, key=str) == sorted(wanted[0], key=str)
    assert versions == wanted[1:]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
