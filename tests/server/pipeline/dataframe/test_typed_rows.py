"""Typed rows as versions of a log."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe import (
    repeated_keys,
    runs,
    typed_commit,
    typed_versions,
)
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, published
from tests.server.pipeline.dataframe.typed_writing import state, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def rows(*values: tuple[Any, ...], names: str = "id name", **kinds: pa.DataType) -> pa.Table:
    columns = [*zip(*values, strict=True)] if values else [() for _ in names.split()]
    default = {"id": pa.int64(), "name": pa.string(), "_commit_version": pa.int64()}
    fields = [(name, (default | kinds).get(name, pa.string())) for name in names.split()]
    return pa.table(
        [pa.array(column, kind) for column, (_, kind) in zip(columns, fields, strict=True)],
        pa.schema(fields),
    )


def test_a_write_without_versions_is_one_version(log_root: Path) -> None:
    write(log_root, [rows((1, "a"), (2, "b")), rows((3, None))])
    assert published(log_root / "shop") == 1
    assert state(log_root) == {
        "1": b'{"id":1,"name":"a"}',
        "2": b'{"id":2,"name":"b"}',
        "3": b'{"id":3,"name":null}',
    }
    (lead,) = leads(log_root / "shop")
    assert (lead["counts"], lead["source_count"], lead["schema_changes"]) == ({"t": 4}, 3, 1)
    assert verify(log_root / "shop").sound


FEED = "id name _change_type _commit_version"


def test_a_change_feed_is_written_as_it_is(log_root: Path) -> None:
    write(
        log_root,
        [
            rows((1, "b", "update_postimage", 5), (2, "x", "insert", 4), names=FEED),
            rows(
                (1, "a", "insert", 4),
                (1, "a", "update_preimage", 5),
                (2, "x", "delete", 9),
                names=FEED,
            ),
        ],
    )
    assert published(log_root / "shop") == 3
    found = [
        (each.version, each.operation, each.primary_key, each.before, each.after, each.changed)
        for each in sorted(
            data(log_root / "shop"), key=lambda each: (each.version, each.primary_key)
        )
    ]
    a, b, x = b'{"id":1,"name":"a"}', b'{"id":1,"name":"b"}', b'{"id":2,"name":"x"}'
    assert found == [
        (1, Operation.UPSERT, "1", None, a, None),
        (1, Operation.UPSERT, "2", None, x, None),
        (2, Operation.UPSERT, "1", a, b, ["name"]),
        (3, Operation.REMOVE, "2", x, None, None),
    ]


KEY_LIST = [1, 2, 3, 4, 17, -1]
KEYS = st.sampled_from(KEY_LIST)
NAMES = st.sampled_from(["a", "b", 'q"'])
Rows = dict[int, str]
Values = list[tuple[Any, ...]]
Steps = list[tuple[Rows, set[int]]]
"""For each version, the table after it, and the keys that have a record in it."""


def image(key: int, name: str) -> bytes:
    """Return the image of a row."""
    return orjson.dumps({"id": key, "name": name})


@st.composite
def feeds(draw: st.DrawFn, table: Rows, versions: int) -> tuple[Values, Steps]:
    """Return the rows of a change feed over a table, and its versions."""
    found, after = [], []
    for version in range(1, versions + 1):
        table = dict(table)
        keys = draw(st.lists(KEYS, unique=True, min_size=1, max_size=4))
        for key in keys:
            old, new = table.get(key), draw(NAMES)
            if old is None:
                found.append((key, new, draw(st.sampled_from(["insert", "upsert", None])), version))
                table[key] = new
                continue
            way = draw(st.sampled_from(["update", "delete", "replace"]))
            if way == "update":
                found.append((key, old, "update_preimage", version))
                found.append((key, new, "UPDATE_POSTIMAGE", version))
            else:
                found.append((key, old, "DELETE", version))
            if way == "replace":
                found.append((key, new, "insert", version))
            table[key] = new
            if way == "delete":
                del table[key]
        after.append((table, {*keys}))
    return draw(st.permutations(found)), after


@st.composite
def writes(draw: st.DrawFn) -> list[tuple[str, Values, Steps]]:
    """Return writes one after the other: each with its mode, its rows, and its versions."""
    table: Rows = {}
    found = []
    for _ in range(draw(st.integers(1, 4))):
        mode = draw(st.sampled_from(["feed", "snapshot", "full"]))
        if mode == "feed":
            values, after = draw(feeds(table, draw(st.integers(1, 3))))
        elif mode == "snapshot":
            snapshot = draw(st.dictionaries(KEYS, NAMES, max_size=5))
            values = [*snapshot.items()]
            keys = {key for key in KEY_LIST if snapshot.get(key) != table.get(key)}
            after = [(snapshot, keys)] if keys else []
        else:
            upserts = draw(st.dictionaries(KEYS, NAMES, min_size=1, max_size=5))
            values, after = [*upserts.items()], [({**table, **upserts}, {*upserts})]
        table = after[-1][0] if after else table
        found.append((mode, values, after))
    return found


@pytest.mark.slow
@given(writes(), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 1 << 30]))
@settings(max_examples=60)
def test_the_versions_of_writes_are_those_of_a_model(
    tmp_path_factory: pytest.TempPathFactory,
    given_writes: list[tuple[str, Values, Steps]],
    partitions: int,
    batch_rows: int,
    bound: int,
) -> None:
    """However the rows are distributed, and however small the runs, windows and held records are."""
    root = tmp_path_factory.mktemp("log")
    expected: dict[int, dict[str, tuple[int, bytes | None, bytes | None]]] = {}
    table: Rows = {}
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            *((runs, each) for each in ("_RUN_BYTES", "_CARRIED_BYTES", "_WINDOW_BYTES")),
            *((typed_versions, each) for each in ("_HELD_BYTES", "ROWS_MAX", "_LOOKED_UP_MAX")),
        ):
            patch.setattr(module, name, min(bound, getattr(module, name)))
        patch.setattr(runs, "_BATCH_ROWS", batch_rows)
        for mode, values, after in given_writes:
            names = FEED if mode == "feed" else "id name"
            parts = [rows(*values[at::partitions], names=names) for at in range(partitions)]
            options = {"feed": {}, "snapshot": {"mode": "snapshot"}, "full": {"images": "full"}}
            write(root, parts, batch_rows=batch_rows, **options[mode])
            for following, keys in after:
                expected[len(expected) + 1] = dict(_changes(table, following, keys))
                table = following
    found: dict[int, dict[str, tuple[int, bytes | None, bytes | None]]] = {}
    for each in data(root / "shop"):
        found.setdefault(each.version, {})[each.primary_key or ""] = (
            *(each.operation, each.before, each.after),
        )
    assert {version: {} for version in expected} | found == expected
    if table or found:
        assert state(root) == {str(key): image(key, name) for key, name in table.items()}
    assert verify(root / "shop").sound


def _changes(
    before: Rows, after: Rows, keys: set[int]
) -> Iterator[tuple[str, tuple[int, bytes | None, bytes | None]]]:
    """Yield key → operation and images, of the change from one table to the next."""
    for key in keys:
        old, new = (image(key, each[key]) if key in each else None for each in (before, after))
        yield str(key), (Operation.UPSERT if key in after else Operation.REMOVE, old, new)


V = "id name _commit_version"
ID = "id name _commit_version _transaction_id"
ENTITY = "id name _entity_type"


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            rows((1, "a"), (None, "b")),
            {},
            r"column id of row 1 of its partition \(t, key None\) is null",
        ),
        (
            rows((7, "a"), (7, "b")),
            {},
            "column id of t, key '7': the key has 2 rows .upsert, upsert. in one version",
        ),
        (
            rows((7, "a", "update_preimage", 3), names=FEED),
            {},
            "t, key '7', version 3 of the source: update_preimage has no update_postimage",
        ),
        (
            rows((7, "a", "update_postimage", 3), (8, "a", "insert", 3), names=FEED),
            {},
            "key '7', version 3 of the source: update_postimage has no update_preimage",
        ),
        (
            rows((7, "a", "delete", 3), (7, "b", "upsert", 3), names=FEED),
            {},
            "key '7', version 3 .* 2 rows .delete, upsert.",
        ),
        (
            rows((7, "a", "insret", 3), names=FEED),
            {},
            r"_change_type of row 0 of its partition \(t, key 7\) is 'insret'; did you mean insert\?",
        ),
        (rows((7, "a", None), names=V), {}, "_commit_version of row 0 .*t, key 7.* is null"),
        (rows((7, "a", "x"), names=V, _commit_version=pa.string()), {}, "must be a whole number"),
        (
            rows((1, "a", 3, "x"), (2, "a", 3, "y"), names=ID),
            {},
            "version 3 of the source has more than one transaction_id: 'x' and 'y'",
        ),
        (rows((1, "a")), {"key": "ide"}, "option key: no column 'ide'; did you mean id"),
        (rows((1, "a")), {"key": None}, "option key is missing"),
        (rows((1, "a"), names="id ID", ID=pa.string()), {}, "'id' and 'ID' differ by case only"),
        (
            rows((1, "a")),
            {"entityType": None},
            "by the option entityType or by a column _entity_type",
        ),
        (rows((1, "a", "u"), names=ENTITY), {}, "option entityType or .* and not by both"),
        (
            rows((1, "a", None), names=ENTITY),
            {"entityType": None},
            "column _entity_type of row 0 .* is null",
        ),
        (rows((1, "a")), {"columns": '{"t": ["id"]}'}, "option columns is for records"),
        (
            rows((1, "a")),
            {"mode": "snapshoot"},
            "option mode: no 'snapshoot'; did you mean snapshot",
        ),
        (rows((1, "a")), {"entitytpye": "t"}, "no option 'entitytpye'; did you mean entityType"),
        (
            rows((1, "a", 1), (1, "a", 2), names=V),
            {"images": "full"},
            "images=full or mode=snapshot a write is one version, and the rows are of 2",
        ),
        (
            rows((1, "a", "delete"), names="id name _change_type"),
            {"mode": "snapshot"},
            "t, key '1': a snapshot has the rows that exist",
        ),
        (
            rows((1, 2), (2, 3), names="id name", name=pa.int32()),
            {},
            "t: column 'name' is INTEGER, which cannot hold the values that the log has as VARCHAR",
        ),
        (
            rows((1, "a"), names="id Name"),
            {},
            "t: column 'Name' differs from the log's column 'name' by case only",
        ),
        (rows((1, "a")), {"key": "id,name"}, "t: the key is id, name, and in the log it is id"),
    ],
)
def test_a_wrong_write_is_refused_and_leaves_the_log_as_it_was(
    log_root: Path, table: pa.Table, options: dict[str, Any], message: str
) -> None:
    write(log_root, [rows((0, "zero"))])
    with pytest.raises(InvalidRequest, match=message):
        write(log_root, [table], **options)
    assert published(log_root / "shop") == 1
    write(log_root, [rows((0, "one"))])
    assert state(log_root) == {"0": b'{"id":0,"name":"one"}'}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 40), NAMES, st.sampled_from("tu")), max_size=12),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([0, 400]),
    st.sampled_from([1, 1 << 22]),
)
@settings(max_examples=60)
def test_a_direct_write_has_the_records_of_a_merged_one(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[tuple[int, str, str]],
    partitions: int,
    batch_rows: int,
    carried: int,
    at_once: int,
) -> None:
    """Tasks write records, or the commit merges changes: a column of kinds without values decides."""
    root = tmp_path_factory.mktemp("log")
    times = Counter((name, str(key)) for key, _, name in values)
    outcomes: list[tuple[Any, Any] | None] = []
    columns: list[tuple[str, tuple[Any, ...]]] = [("direct", ()), ("merged", (None,))]
    for place, kinds in columns:
        names = ENTITY + " _change_type" * len(kinds)
        parts = [
            rows(*((*each, *kinds) for each in values[at::partitions]), names=names)
            for at in range(partitions)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "_CARRIED_BYTES", carried)
            patch.setattr(repeated_keys, "_HASHES_AT_ONCE", at_once)
            try:
                write(root / place, parts, batch_rows=batch_rows, entityType=None)
            except InvalidRequest as error:
                found = re.match(r"column id of (.), key '(\d+)': the key has (\d+) ", str(error))
                assert found is not None
                assert times[found[1], found[2]] == int(found[3]) > 1
                assert not [*(root / place / "shop" / "segments").rglob("*.arrow")]
                outcomes.append(None)
                continue
        assert verify(root / place / "shop").sound
        written = data(root / place / "shop")
        compact(root / place / "shop", 1 << 50)
        assert data(root / place / "shop") == written
        records = [each._replace(place=0) for each in written]
        outcomes.append((leads(root / place / "shop"), sorted(records, key=repr)))
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0] is None) == (len(times) < len(values))


def test_the_halves_of_a_repeated_key_are_found_in_two_partitions(log_root: Path) -> None:
    names = "id name _change_type"
    parts = [rows((7, "a", "insert"), names=names), rows((7, "a", None), names=names)]
    with pytest.raises(InvalidRequest, match=r"t, key '7': .* 2 rows \(insert, upsert\)"):
        write(log_root, parts)


def test_a_repeated_batch_is_written_once_however_it_is_divided(log_root: Path) -> None:
    values = [(1, "a", 4), (2, "b", 4), (1, "c", 5)]
    write(log_root, [rows(*values, names=V)], batch=1)
    write(log_root, [rows(*values[2:], names=V), rows(*values[:2], names=V)], batch=1)
    assert published(log_root / "shop") == 2
    with pytest.raises(InvalidRequest, match="other content"):
        write(log_root, [rows(*values[:2], names=V)], batch=1)
    files = [*(log_root / "shop" / "segments").rglob("*-run*")]
    assert not files


def test_a_version_of_the_source_has_its_id_and_its_time_in_the_lead(log_root: Path) -> None:
    names = "id _commit_version _transaction_id _commit_timestamp"
    kind = pa.timestamp("us", "UTC")
    at = 1_700_000_000_123_456
    table = rows(
        *[(1, 8, "tx-8", at + 1), (1, 7, "tx-7", at), (2, 7, "tx-7", at)],
        names=names,
        _commit_timestamp=kind,
    )
    write(log_root, [table])
    found = [
        (each["transaction_id"], each["source_timestamp"]) for each in leads(log_root / "shop")
    ]
    assert found == [("tx-7", at), ("tx-8", at + 1)]


def test_rows_of_several_entity_types_are_one_version(log_root: Path) -> None:
    names = "id name _entity_type"
    parts = [rows((1, "a", "u"), (1, "b", "t"), names=names), rows((2, "c", "u"), names=names)]
    write(log_root, parts, entityType=None)
    write(log_root, parts, entityType=None, images="full")
    assert state(log_root, "t") == {"1": b'{"id":1,"name":"b"}'}
    assert [*state(log_root, "u")] in (["1", "2"], ["2", "1"])
    assert [lead["counts"] for lead in leads(log_root / "shop")] == [
        {"t": 2, "u": 3},
        {"t": 1, "u": 2},
    ]
    assert all(each.before == each.after for each in data(log_root / "shop") if each.version == 2)


def test_old_images_are_in_the_columns_of_the_new_version(log_root: Path) -> None:
    """A column may come, go, and become wider between two writes; a column of nulls gets its type later."""
    write(log_root, [rows((1, "a", 5), names="id name n", n=pa.int32())])
    write(
        log_root,
        [rows((1, 6, None), names="id n m", n=pa.int64(), m=pa.null())],
        images="full",
    )
    write(log_root, [rows((1, 6, "x"), names="id n m", n=pa.int64())], images="full")
    found = [(each.before, each.after, each.changed) for each in data(log_root / "shop")]
    assert found == [
        (None, b'{"id":1,"name":"a","n":5}', None),
        (b'{"id":1,"n":5}', b'{"id":1,"n":6,"m":null}', ["n", "m"]),
        (b'{"id":1,"n":6,"m":null}', b'{"id":1,"n":6,"m":"x"}', ["m"]),
    ]


def test_an_equal_snapshot_makes_no_version_and_an_empty_one_removes_every_row(
    log_root: Path,
) -> None:
    for table in (rows((1, "a"), (2, "b")), rows((2, "b"), (1, "a")), rows()):
        write(log_root, [table], mode="snapshot")
    assert [(each.version, each.operation) for each in data(log_root / "shop")] == [
        (1, Operation.UPSERT),
        (1, Operation.UPSERT),
        (2, Operation.REMOVE),
        (2, Operation.REMOVE),
    ]


def test_a_snapshot_compares_values_and_not_the_notation_of_another_writer(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop", writer="other") as log:
        log.append([Mutation("t", "1", after=b'{"name": "a", "id": 1}')])
    write(log_root, [rows((1, "a"), (2, "b"))], mode="snapshot", take_over="true")
    assert [each.primary_key for each in data(log_root / "shop") if each.version == 2] == ["2"]


def test_many_runs_are_merged_in_several_passes(log_root: Path) -> None:
    parts = [rows(*((key * 7 + part, "x") for key in range(9))) for part in range(7)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typed_commit, "fewer", partial(runs.fewer, at_once=2))
        write(log_root, parts)
    assert {*state(log_root)} == {str(key) for key in range(63)}
    assert not [*(log_root / "shop" / "segments").rglob("*-merged*")]


@pytest.mark.parametrize("options", [{}, {"images": "full"}, {"batch": 1}])
def test_a_write_without_rows_makes_no_version(log_root: Path, options: dict[str, Any]) -> None:
    write(log_root, [rows(), rows()], **options)
    assert published(log_root / "shop") == 0
    write(log_root, [rows((1, "a"))])
    assert published(log_root / "shop") == 1


def test_keys_of_a_renamed_entity_type_are_found(log_root: Path) -> None:
    """Their rows are sorted by the hash under the first name."""
    with LogWriter.open(log_root, "shop", writer="spark") as log:
        for key in range(20):
            image = b'{"id":%d,"name":"a"}' % key
            log.append([Mutation("item", str(key), after=image)])
    mapping = SchemaMapping.parse('[entity_types.t]\nrenamed_from = "item"')
    with LogWriter.open(log_root, "shop", writer="spark", mapping=mapping) as log:
        log.append([Mutation("t", "20", after=b'{"id":20,"name":"a"}')])
    modes: list[dict[str, Any]] = [{"images": "full"}, {"mode": "snapshot"}]
    for options in modes:
        write(log_root, [rows(*((key, "b") for key in range(21)))], **options)
    found = [each for each in data(log_root / "shop") if each.version > 21]
    assert {(each.version, each.before) for each in found} == {
        (22, b'{"id":%d,"name":"a"}' % key) for key in range(21)
    }
    assert verify(log_root / "shop").sound
