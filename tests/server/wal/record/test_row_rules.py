"""One table of cases: which rows a program may write, whatever way it takes into the log."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.wal import transaction_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.record.row_rules import first_repeated_key, repeated_member
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.support.compiled_loops import loops_used

if TYPE_CHECKING:
    from pathlib import Path

MAPPING = SchemaMapping.parse(
    """
    [entity_types.t]
    key = ["id"]
    columns.n = { type = "BIGINT" }
    columns.day = { type = "DATE", nullable = false }
    """
)
IMAGE = b'{"id":1,"n":1}'


def way_by_mutations(root: Path, rows: list[Mutation]) -> None:
    with LogWriter.open(root, "shop") as log:
        log.append(rows)


def way_by_columns(root: Path, rows: list[Mutation]) -> None:
    with loops_used(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_writer, "COLUMNAR_FROM", 1)
        way_by_mutations(root, rows)


def way_by_batch(root: Path, rows: list[Mutation]) -> None:
    with LogWriter.open(root, "shop") as log:
        log.append_batch(columns_of(rows, operation=[int(each.operation) for each in rows]))


def way_by_spark(root: Path, rows: list[Mutation]) -> None:
    """What a task of a Spark write does."""
    sink = OpenedCatalog.open(
        Options.of({"path": str(root / "shop"), "writer": "log-writer", "take_over": "true"})
    )
    names = [each.operation.name.lower() for each in rows]
    batch = columns_of(rows, operation=names, transaction_id=["1"] * len(rows))
    sink.write(iter([batch]), "task", None)


def columns_of(rows: list[Mutation], **others: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            **{
                name: pa.array([getattr(each, name) for each in rows], kind)
                for name, kind in (
                    ("entity_type", pa.utf8()),
                    ("primary_key", pa.utf8()),
                    ("before", pa.binary()),
                    ("after", pa.binary()),
                    ("change", pa.binary()),
                    ("changed", pa.list_(pa.utf8())),
                )
            },
            **others,
        }
    )


WAYS = [way_by_mutations, way_by_columns, way_by_batch, way_by_spark]

ALLOWED = {
    # operation, primary_key, before, after
    (Operation.UPSERT, True, False, True),
    (Operation.UPSERT, True, True, True),
    (Operation.REMOVE, True, False, False),
    (Operation.REMOVE, True, True, False),
    (Operation.REMOVE, False, False, False),
    (Operation.EXPIRE, True, False, False),
    (Operation.EXPIRE, True, True, False),
}
OPERATIONS = (Operation.UPSERT, Operation.REMOVE, Operation.EXPIRE)
CASES = [*product(OPERATIONS, *((False, True),) * 3)]


def case(operation: Operation, has_key: bool, has_before: bool, has_after: bool) -> Mutation:
    return Mutation(
        "t",
        "1" if has_key else None,
        operation,
        IMAGE if has_before else None,
        IMAGE if has_after else None,
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_row_is_written_if_key_and_images_go_with_its_operation(log_root: Path, way: Any) -> None:
    first = Mutation("t", "0", after=b'{"id":0}')
    for number, each in enumerate(CASES):
        root = log_root / str(number)
        if each in ALLOWED:
            way(root, [first, case(*each)])
        else:
            with pytest.raises(InvalidRequest, match=r"column (primary_key|before|after) of "):
                way(root, [first, case(*each)])


FAULTY = {
    "a key twice": ([Mutation("t", "1", after=IMAGE)] * 2, "column primary_key of .* earlier row"),
    "a key once more as a removal": (
        [Mutation("t", "1", after=IMAGE), Mutation("t", "1", Operation.REMOVE)],
        "column primary_key of .* earlier row",
    ),
    "a member twice": ([Mutation("t", "1", after=b'{"id":1,"id":2}')], "column after of .* twice"),
    "a member twice before": (
        [Mutation("t", "1", before=b'{"a":":","id":1,"\\u0061":2}', after=IMAGE)],
        "column before of .* twice",
    ),
    "a member of change twice": (
        [Mutation("t", "1", after=IMAGE, change=b'{"a":1,"a":1}')],
        "column change of .* twice",
    ),
    "a name twice": (
        [Mutation("t", "1", after=IMAGE, changed=("n", "id", "n"))],
        "changed .*(twice|once)",
    ),
    "no entity type": ([Mutation("", "1", after=IMAGE)], "entity_type .*empty"),
    **{
        f"a count of {number[:20]}": (
            [Mutation("u", "1", after=IMAGE, change=b'{"diff": %b}' % number.encode())],
            "change of .*: ?.*64 bits|change of .* counts rows by",
        )
        for number in (str(2**63), str(-(2**63) - 1), str(2**64), "1e400", "1.5", "9" * 5_000)
    },
    # What the columns of the catalog forbid, as `MAPPING` has declared them.
    "a value of another type": (
        [Mutation("t", "1", after=b'{"id":1,"n":"x"}')],
        'column after of .* column n: "x" is not a whole number',
    ),
    "a value before of another type": (
        [Mutation("t", "1", before=b'{"id":1,"n":"x"}', after=IMAGE)],
        "column before of .* column n",
    ),
    "a null that is not taken": (
        [Mutation("t", "1", after=b'{"id":1,"day":null}')],
        "column after of .* column day is null",
    ),
    "another key": (
        [Mutation("t", "2", after=IMAGE)],
        r"column after of .* its key \(id\) is '1', and primary_key is '2'",
    ),
    "another key before": (
        [Mutation("t", "1", before=b'{"id":7}', after=IMAGE)],
        "column before of .* its key",
    ),
    "another key of a removal": (
        [Mutation("t", "1", Operation.REMOVE, before=b'{"id":7}')],
        "column before of .* its key",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_readers_could_not_rely_on_is_refused_with_row_and_column(
    log_root: Path, way: Any
) -> None:
    """The columns are those that the log has: a later writer need not declare them again."""
    first = Mutation("t", "0", after=b'{"id":0,"n":0,"day":"2024-02-29"}')
    with LogWriter.open(log_root, "shop", mapping=MAPPING) as log:
        log.append([first])
    for rows, message in FAULTY.values():
        with pytest.raises(InvalidRequest, match=message):
            way(log_root, [first, *rows])
    way(log_root, [first, Mutation("t", "1", after=b'{"n":2}'), Mutation("u", "1", after=IMAGE)])
    for count in (2**63 - 1, -(2**63), 0):
        way(log_root, [first, Mutation("u", "1", after=IMAGE, change=b'{"diff":%d}' % count)])
    # The column diff of rows with a key.
    change = b'{"diff":1.5}'
    way(
        log_root,
        [first, Mutation("v", "1", after=b'{"diff":1.5}', change=change, changed=("diff",))],
    )
    way(
        log_root,
        [first, Mutation("v", "1", before=b'{"diff":1}', after=b'{"diff":1.5}', change=change)],
    )
    part = b'{"id":1,"n":"__debezium_unavailable_value"}'
    way(log_root, [first, Mutation("t", "1", before=b'{"id":1,"day":null}', after=part)])


NAMES = st.sampled_from(["a", "b", ":", "\\u003a", "\\u0061", "c:d"])
VALUES = st.sampled_from(["1", '":"', '{"x":[{"y":1}]}', '"12:40:01"', "null", '"\\u003a"'])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.sampled_from(["", " "]))
def test_a_repeated_member_is_found_whatever_colons_there_are(
    members: list[tuple[str, str]], space: str
) -> None:
    text = ",".join(f'"{name}"{space}:{space}{value}' for name, value in members)
    image = f"{{{text}}}".encode()
    names = [name.replace("\\u003a", ":").replace("\\u0061", "a") for name, _ in members]
    repeated = [name for place, name in enumerate(names) if name in names[:place]]
    assert repeated_member(image, decode_members(image)) == (repeated[0] if repeated else None)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_repeated_key_is_found_in_its_transaction_and_entity_type(
    rows: list[tuple[str, int]], begins: list[bool]
) -> None:
    keys = [None if key == "d" else key for key, _ in rows]
    starts = [row for row in range(len(rows)) if row == 0 or begins[row]]
    seen: set[tuple[int, int, str]] = set()
    wanted = None
    for row, (key, (_, code)) in enumerate(zip(keys, rows, strict=True)):
        place = sum(start <= row for start in starts)
        if key is not None and (place, code, key) in seen and wanted is None:
            wanted = row
        seen.add((place, code, key or ""))
    if rows:
        codes = pa.array([code for _, code in rows]).to_numpy()
        found = first_repeated_key(codes, pa.array(keys, pa.utf8()), pa.array(starts).to_numpy())
        assert found == wanted
