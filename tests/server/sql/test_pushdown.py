"""What WHERE says of a table is read less of, and no answer changes by it."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import TailraceError
from tailrace_server.sql import scans
from tailrace_server.sql.query import QueryLimits
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.upkeep.retention import trim
from tests.server.sql.test_query import TYPED, ask, image, opened, product, products

if TYPE_CHECKING:
    from pathlib import Path

TIMES = [f"make_timestamptz({{{version}}})" for version in range(1, 5)]
CHANGES_CONDITIONS = [
    *(f"_commit_timestamp {operator} {time}" for operator in ("<", ">=") for time in TIMES),
    *(f"{time} {operator} _commit_timestamp" for operator in ("=", "<=") for time in TIMES[:2]),
    f"_commit_timestamp BETWEEN {TIMES[1]} AND {TIMES[2]}",
    f"_commit_timestamp IN ({TIMES[0]}, {TIMES[3]})",
    "_commit_timestamp > now() - INTERVAL 1 DAY",
    "_commit_timestamp > now()",
    "_commit_timestamp >= '2020-01-01'",
    "_commit_version > 2",
    "_commit_version = '3'",
    "NOT (_commit_version <= 1.5)",
    "_commit_version < 2.5",
    "_commit_version IN ($two, 4)",
    "_commit_version <> 2",
    "_commit_version = 2 + 1",
    "_commit_version > NULL",
    "_commit_version - 1 = 2",
    "_change_type = 'delete'",
    "_change_type = lower('INSERT')",
    "_change_type NOT IN ('insert', 'update')",
    "_change_type <> 'delete' COLLATE NOCASE",
    "_primary_key = '1'",
    "_primary_key IN ('2', $two, '10')",
    "_primary_key = 1",
    "after.id = 10",
    "before.id IN (1, 2)",
    "after.name = 'chair'",
]
STATE_CONDITIONS = [
    "id = 1",
    "id = '01'",
    "id = $two::BIGINT + 8",
    "id = ANY([1, 10])",
    "id IN (1, 2, 10)",
    "id BETWEEN 2 AND 10",
    "id <> 1",
    "_primary_key = '10'",
    "name = 'chair'",
    "_version > 1",
]
CHANGES = [
    "SELECT _commit_version, _index, _change_type FROM CHANGES('product') WHERE {}",
    "SELECT * FROM (SELECT * FROM CHANGES('product')) AS x WHERE {}",
    "WITH x AS (SELECT * FROM CHANGES('product', 2) WHERE {}) SELECT _primary_key FROM x",
    "SELECT count(*) FROM (SELECT * FROM CHANGES('product') LIMIT 2) WHERE {}",
    "SELECT * FROM (SELECT *, row_number() OVER () n FROM CHANGES('product')) WHERE {}",
    "WITH x AS (SELECT * FROM CHANGES('product')) SELECT count(*), (SELECT count(*) FROM x) FROM x "
    "WHERE {}",
    "SELECT * FROM (SELECT *, _commit_version AS _index, _index AS _commit_version, 'x' AS _change_type, "
    "_commit_version::TEXT AS _primary_key FROM CHANGES('product')) WHERE {}",
    "SELECT p.id FROM product p WHERE EXISTS (SELECT 1 FROM CHANGES('product') WHERE {})",
    "SELECT _index FROM CHANGES('product') WHERE {0} UNION ALL SELECT 7 FROM CHANGES('product') "
    "WHERE NOT {0}",
]
QUALIFIED = [
    "SELECT c._commit_version, p.id FROM product p {} JOIN CHANGES('product') c "
    "ON p._primary_key = c._primary_key WHERE c._change_type <> 'delete' AND p.id > 0",
    "SELECT c._commit_version, p.id FROM CHANGES('product') c {} JOIN product p "
    "ON p._primary_key = c._primary_key WHERE c._commit_version >= 2",
    "SELECT c.v, p.id FROM (SELECT _commit_version AS v, _primary_key AS k FROM CHANGES('product')) c "
    "{} JOIN product p ON p._primary_key = c.k WHERE c.v = 3",
    "SELECT a.id, b.id FROM product a {} JOIN product FOR VERSION AS OF 1 b ON a.id = b.id "
    "WHERE b.id = 1",
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("log")
    products(root)
    return root


def both(log: Path, text: str) -> None:
    """Hold the rows of a statement against those without anything pushed."""
    view = open_catalog(log, "shop").view
    for version in range(1, 5):
        text = text.replace(f"{{{version}}}", str(view.timestamp_of(version)))
    parameters = {"two": "2"} if "$two" in text else None

    def answer(*, pushes: bool) -> object:
        try:
            return sorted(map(repr, ask(log, text, parameters=parameters, pushes=pushes)))
        except TailraceError as error:
            return str(error)

    assert answer(pushes=True) == answer(pushes=False), text


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_pushed_changes_no_answer(log: Path, data: st.DataObject) -> None:
    """Conditions of every form, in every place that they can stand in."""
    state = data.draw(st.booleans())
    known = STATE_CONDITIONS if state else CHANGES_CONDITIONS
    terms = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
    condition = data.draw(st.sampled_from([" AND ", " OR "])).join(f"({each})" for each in terms)
    if state:
        both(log, f"SELECT id, name FROM product WHERE {condition}")
        both(log, f"SELECT * FROM (SELECT * FROM product ORDER BY price) WHERE {condition}")
    else:
        form = data.draw(st.sampled_from(CHANGES))
        both(log, form.replace("{}", f"({condition})").replace("{0}", f"({condition})"))


@pytest.mark.parametrize("kind", ["", "LEFT", "RIGHT", "FULL"])
def test_what_is_pushed_below_a_join_changes_no_answer(log: Path, kind: str) -> None:
    for each in QUALIFIED:
        both(log, each.format(kind))
    both(
        log,
        "SELECT a._commit_version, b._commit_version FROM CHANGES('product') a ASOF JOIN "
        "CHANGES('product') b ON a._commit_version >= b._commit_version WHERE b._change_type = 'insert'",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{changes} WHERE _commit_version > 2", "versions 2 to 4"),
        ("{changes} WHERE _commit_timestamp >= {3} AND _commit_timestamp < {4}", "versions 3 to 4"),
        ("{changes} WHERE _commit_timestamp > now()", "no versions"),
        ("{changes} WHERE _change_type = 'delete' AND after.id = 10", "delete alone; 1 key"),
        ("WITH x AS ({changes}) SELECT 1 FROM x WHERE x._primary_key = 'a'", "1 key"),
        (
            "SELECT * FROM (SELECT _commit_version v FROM CHANGES('product')) d WHERE d.v = 3",
            "3 to 3",
        ),
        (
            "SELECT * FROM (SELECT max(_commit_version) _commit_version FROM CHANGES('product')) "
            "WHERE _commit_version = 3",
            "1 to 4",
        ),
        ("SELECT * FROM product p(_primary_key, b) WHERE _primary_key = 1", "all keys"),
    ],
)
def test_a_plan_shows_what_is_left_out(log: Path, text: str, told: str) -> None:
    view = open_catalog(log, "shop").view
    for version in range(1, 5):
        at = f"make_timestamptz({view.timestamp_of(version)})"
        text = text.replace(f"{{{version}}}", at)
    text = text.replace("{changes}", "SELECT * FROM CHANGES('product')")
    assert told in ask(log, f"EXPLAIN {text}")[0][0]


PLAIN = "SELECT _change_type, after.id, _commit_version, _index FROM CHANGES('product')"


@pytest.mark.parametrize(
    ("text", "is_pushed"),
    [
        (f"{PLAIN} ORDER BY _commit_version, _index", True),
        (f"{PLAIN} WHERE after.id > 0 ORDER BY 3 DESC, 4 DESC", True),
        (f"{PLAIN} ORDER BY _commit_version DESC, _index DESC LIMIT 2", True),
        (f"{PLAIN} ORDER BY _commit_version DESC, _index DESC LIMIT 2 OFFSET 1", True),
        (f"SELECT * FROM ({PLAIN}) x ORDER BY x._commit_version DESC, _index DESC LIMIT 3", True),
        (f"WITH x AS ({PLAIN}) SELECT * FROM x ORDER BY _commit_version, _index LIMIT 3", True),
        (f"{PLAIN} ORDER BY _commit_timestamp DESC, _commit_version DESC, _index DESC", True),
        (f"{PLAIN} WHERE _commit_version = 1 ORDER BY _commit_version DESC, _index DESC", True),
        (f"{PLAIN} ORDER BY _commit_version, _index DESC", False),
        (f"{PLAIN} ORDER BY _index, _commit_version", False),
        (f"{PLAIN} ORDER BY _commit_version + 0, _index", False),
        (f"SELECT * FROM ({PLAIN} LIMIT 3) ORDER BY _commit_version DESC, _index DESC", False),
        (f"SELECT DISTINCT _commit_version FROM ({PLAIN}) ORDER BY _commit_version DESC", False),
        (f"SELECT count(*), _commit_version FROM ({PLAIN}) GROUP BY 2 ORDER BY 2 DESC", False),
        (
            f"{PLAIN} WHERE after.id IN (SELECT id FROM product) ORDER BY _commit_version, _index",
            False,
        ),
        (
            "SELECT -_commit_version AS _commit_version, _index FROM CHANGES('product') "
            "ORDER BY _commit_version, _index",
            False,
        ),
        # Two columns of one name, of which a star has one, and a star that says otherwise.
        ("SELECT *, _commit_version AS _index FROM CHANGES('product') ORDER BY _index DESC", False),
        (
            "SELECT * REPLACE (-_commit_version AS _commit_version) FROM CHANGES('product') "
            "ORDER BY _commit_version, _index",
            False,
        ),
        ("SELECT id FROM product ORDER BY _version, _index", False),
    ],
)
def test_the_order_of_the_log_is_not_sorted_again(log: Path, text: str, *, is_pushed: bool) -> None:
    assert ask(log, text) == ask(log, text, pushes=False)
    plan = " ".join(row[0] for row in ask(log, f"EXPLAIN {text}")).upper()
    assert ("ORDER" not in plan and "TOP N" not in plan) == is_pushed, plan


def test_a_limit_ends_a_scan_that_begins_with_the_newest(log: Path) -> None:
    newest = f"{PLAIN} ORDER BY _commit_version DESC, _index DESC LIMIT 1"
    with opened(log, newest, limits=QueryLimits(seconds=600)) as query:
        rows = [row["_commit_version"] for batch in query.batches() for row in batch.to_pylist()]
        assert rows == [4]
        assert query.scans[0].rows < 5


def test_a_statement_has_one_time(log_root: Path) -> None:
    """What is compared with now() before the statement runs and while it does is one moment."""
    products(log_root)
    both_ends = "_commit_timestamp <= now() AND now() = (SELECT max(now()) FROM product)"
    assert ask(log_root, f"SELECT count(*) FROM CHANGES('product') WHERE {both_ends}") == [(5,)]
    trim(log_root / "shop", 3, 10**15)
    both(log_root, "SELECT * FROM CHANGES('product', 2) WHERE _commit_version > 3")


def test_records_of_a_key_are_joined_in_their_order(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    price, changed = 1, cycle([("price",), ("name", "price"), None])
    for _ in range(2):  # the segments of two writers have other codes for the columns
        with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
            for commit in range(20):
                writer.append([product(2, "table", "1.00"), product(10, "lamp", "2.00")])
                for _ in range((0, 1, 3)[commit % 3]):
                    before, after = (image(1, "chair", f"{each}.00") for each in (price, price + 1))
                    said = next(changed)
                    known = before if said else None
                    writer.append(
                        [Mutation("product", "1", before=known, after=after, changed=said)]
                    )
                    price += 1
                writer.commit(publish=True)
    text = "SELECT * FROM CHANGES('product') WHERE _primary_key = '1'"
    wanted = ask(log_root, text, pushes=False)
    assert len(wanted) == 2 * (7 + 18)
    for rows, batches, size in ((64, 16, 1 << 20), (1, 3, 1 << 20), (64, 16, 1)):
        monkeypatch.setattr(scans, "_FEW_ROWS", rows)
        monkeypatch.setattr(scans, "_FEW_BATCHES", batches)
        monkeypatch.setattr(scans, "_FEW_BYTES", size)
        assert ask(log_root, text) == wanted
    both(log_root, f"{text} AND _change_type = 'insert' LIMIT 3")


def test_a_constant_that_is_long_to_write_out_is_left_to_duckdb(log_root: Path) -> None:
    products(log_root)
    asked = "SELECT count(*) FROM CHANGES('product') WHERE _commit_version"
    assert ask(log_root, f"{asked} < 1e200000000") == ask(log_root, f"{asked} > 0")
