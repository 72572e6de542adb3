"""Reads through a server are those of the log itself, under the server's grants."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.cursor import Cursor
from tailrace.position import END, Position
from tailrace_server.log_read.plan import plan
from tailrace_server.log_read.request import Deduplication, Shape
from tailrace_server.wal.catalog import open_catalog
from tests.server.log_read.histories import records_of, request, write
from tests.server.log_read.serving import serving
from tests.server.wal.base.tables import histories, naive

if TYPE_CHECKING:
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.wal.record.mutation import Mutation


def both(asked: ReadRequest, address: str) -> tuple[Any, Any]:
    """Return what a read of the log and the same read through a server return: schema, cursor, rows."""
    found = []
    for each in (asked, replace(asked, log=None, server=address)):
        planned = plan(each)
        batches = [batch for part in planned.parts for batch in part.batches()]
        assert all(batch.schema.equals(planned.schema) for batch in batches)
        rows = [row for batch in batches for row in batch.to_pylist()]
        found.append((planned.schema, planned.schema.metadata, planned.first, planned.last, rows))
    return found[0], found[1]


def in_order(found: Any, *, is_ordered: bool) -> Any:
    *head, rows = found
    return head, rows if is_ordered else sorted(rows, key=repr)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(histories(), st.data())
def test_a_read_through_a_server_is_that_of_the_log(
    history: list[list[Mutation]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, history)
        records = records_of(root)
        prefixes = (naive(records[:count], 99, "item") for count in range(len(records) + 1))
        assume(all(row.multiplicity >= 0 for each in prefixes for row in each.values()))
        uuid = open_catalog(root, "shop").view.uuid
        places = st.sampled_from(
            [Position(each[1], index) for each in records for index in (each[2], END)]
        )
        with serving(root) as address:
            for _ in range(8):
                table = data.draw(st.sampled_from(["order", "item"]))
                begin, end = sorted(data.draw(st.tuples(places, places)))
                spans = {"starting": Cursor.past(uuid, begin), "ending": Cursor.past(uuid, end)}
                if data.draw(st.booleans()):
                    spans = {"starting": max(1, begin.version), "ending": end.version}  # type: ignore[dict-item]
                where = None
                if table == "order":
                    where = data.draw(st.sampled_from([None, None, "value > 1", "id <> '1'"]))
                shape = data.draw(st.sampled_from([*Shape]))
                net = data.draw(st.booleans())
                more: dict[str, Any] = {
                    "shape": shape,
                    "rows_per_part": data.draw(st.integers(1, 9)),
                }
                if shape is not Shape.CAPTURES:
                    more["where"] = where
                if shape is Shape.STATE:
                    more["at"] = end.version
                else:
                    more |= spans
                if shape is Shape.CHANGES and net:
                    more["deduplication"] = Deduplication.NET_CHANGES
                    more["compute_updates"] = data.draw(st.booleans())
                asked = request(root, table, **more)
                of_log, of_server = both(asked, address)
                is_ordered = shape is not Shape.STATE and "deduplication" not in more
                assert in_order(of_server, is_ordered=is_ordered) == in_order(
                    of_log, is_ordered=is_ordered
                ), asked
