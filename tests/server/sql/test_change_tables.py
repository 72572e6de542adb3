"""Change tables: their rows are what a plain fold of the log gives, in its order."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tailrace.criteria import Operation
from tailrace.errors import BodiesExpired, InvalidRequest, PositionCompacted
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.record.unavailable import PLACEHOLDER
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.expiring import expire
from tailrace_server.wal.upkeep.retention import trim
from tests.server.sql.test_query import TYPED, ask, image, product, products

ALL = "/*+ CDC_INCLUDE(PRE, POST, CHANGE) */"
ITEMS = SchemaMapping.parse(
    """
    [entity_types.item]
    key = ["shelf", "id"]
    [entity_types.item.columns]
    shelf = { type = "VARCHAR" }
    id = { type = "BIGINT" }
    price = { type = "DECIMAL(30,2)" }
    note = { type = "VARCHAR", optional = true }
    """
)


def define(root: Path, text: str) -> str:
    """Run a statement that defines; return what was done."""
    ((done,),) = ask(root, text, may_define=True)
    return str(done)


def images(root: Path, text: str) -> list[tuple[Any, ...]]:
    """Return the rows of a change table, without their time; numbers of the JSON as texts."""
    return [
        (*row[1:-1], json.loads(row[-1], parse_float=str, parse_int=str)) for row in ask(root, text)
    ]


# The law.


def written_and_folded(root: Path, seed: int) -> list[list[tuple[Any, ...]]]:
    """Write a table at random, and return what its change table must be in each version, folded in Python."""
    choose = random.Random(seed)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    versions: list[list[tuple[Any, ...]]] = []
    with LogWriter.open(root, "shop", mapping=ITEMS) as writer:
        for _ in range(12):
            mutations: list[Mutation] = []
            wanted: list[tuple[Any, ...]] = []
            for key in choose.sample([(shelf, id) for shelf in "aä" for id in (1, 2, 1 << 60)], 3):
                event, mutation = step(choose, rows, key)
                mutations.append(mutation)
                wanted.append((*key, event))
            if choose.random() < 0.15:
                mutations.append(Mutation("item", None, Operation.REMOVE))
                wanted.append((None, None, {"event_type": "truncate"}))
                rows.clear()
            writer.append(mutations)
            writer.commit(publish=True)
            versions.append(wanted)
    return versions


def step(
    choose: random.Random, rows: dict[tuple[str, int], dict[str, Any]], key: tuple[str, int]
) -> tuple[dict[str, Any], Mutation]:
    """Change one row; return its event, and the mutation for the log."""
    before = rows.pop(key, None)
    pre = values(before)
    text = f'["{key[0]}",{key[1]}]'
    sent = None if before is None else written(key, before)
    if before is not None and choose.random() < 0.4:
        kind = choose.choice([Operation.REMOVE, Operation.EXPIRE])
        name = "delete" if kind is Operation.REMOVE else "ttl_delete"
        return {"event_type": name, "pre_image": pre}, Mutation("item", text, kind, before=sent)
    after = dict(before or {"price": Decimal(0), "note": None})
    for column in choose.sample(["price", "note"], choose.randint(0, 2)):
        # Beyond what a double holds, and without the digits that it would lose.
        price = Decimal(choose.randint(10**20, 10**25)) / 100
        after[column] = price if column == "price" else choose.choice([None, 'a"b', "ü"])
    rows[key] = after
    post = values(after)
    change = {name: value for name, value in post.items() if before is None or pre[name] != value}
    event = {"event_type": "upsert", "pre_image": pre, "change_image": change, "post_image": post}
    assert post == {**pre, **change}
    return event, Mutation("item", text, before=sent, after=written(key, after))


def values(row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {name: f"{value:.2f}" if name == "price" else value for name, value in row.items()}


def written(key: tuple[str, int], row: dict[str, Any]) -> bytes:
    note = json.dumps(row["note"])
    return f'{{"shelf":"{key[0]}","id":{key[1]},"price":{row["price"]:.2f},"note":{note}}}'.encode()


@pytest.mark.parametrize("seed", range(3))
def test_contract_42_rows_are_a_plain_fold_of_the_log_in_its_order(
    log_root: Path, seed: int
) -> None:
    wanted = written_and_folded(log_root, seed)
    define(log_root, "CREATE CDC item_cdc ON item INCLUDE (PRE, POST, CHANGE)")
    assert images(log_root, "SELECT * FROM item_cdc") == [*chain(*wanted)]
    view = open_catalog(log_root, "shop").view
    first, last = (f"make_timestamptz({view.timestamp_of(version)})" for version in (4, 9))
    part = (
        f"SELECT * FROM item_cdc WHERE PHOENIX_ROW_TIMESTAMP() >= {first} "
        f"AND PHOENIX_ROW_TIMESTAMP() < {last}"
    )
    assert images(log_root, part) == [*chain(*wanted[3:8])]
    for buckets in (4, 16):
        define(log_root, f"ALTER CDC item_cdc SET SALT_BUCKETS = {buckets}")
        assert images(log_root, "SELECT * FROM item_cdc") == [*chain(*wanted)]
        assert images(log_root, part) == [*chain(*wanted[3:8])]
    assert "16 scans at once" in str(ask(log_root, "EXPLAIN SELECT * FROM item_cdc"))
    define(log_root, "ALTER CDC item_cdc SET SALT_BUCKETS = 1")
    plan = str(ask(log_root, f"EXPLAIN {part}")[0][0])
    assert plan.startswith(
        "t0: changes of item, versions 4 to 9; all keys; columns _commit_timestamp, shelf, id, CDC JSON"
    )


def test_contract_42_the_hint_of_a_query_overrides_the_definition(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC product_cdc ON product INCLUDE (PRE)")

    def members(hint: str) -> list[list[str]]:
        rows = images(log_root, f"SELECT {hint} * FROM product_cdc WHERE id < 3")
        return [[*row[-1]] for row in rows]

    event, pre, change, post = "event_type", "pre_image", "change_image", "post_image"
    assert members("") == [[event, pre]] * 4
    assert members("/*+ CDC_INCLUDE(POST, CHANGE) */") == [
        *[[event, change, post]] * 3,
        [event],
    ]
    assert members("/*+ cdc_include() */") == [[event]] * 4
    # The nearest SELECT around a table counts.
    both = (
        'SELECT /*+ CDC_INCLUDE(PRE) */ a."CDC JSON" FROM product_cdc a JOIN (SELECT '
        "/*+ CDC_INCLUDE(POST) */ * FROM product_cdc) b USING (id) WHERE b.\"CDC JSON\" LIKE '%pre%'"
    )
    assert ask(log_root, both) == []


# How it is asked.


def test_times_are_asked_for_as_in_apache_phoenix(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC product_cdc ON product")
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    asked = (
        "SELECT * FROM product_cdc WHERE PHOENIX_ROW_TIMESTAMP() >= TO_DATE('{}') "
        "AND PHOENIX_ROW_TIMESTAMP() < TO_DATE('{}', 'yyyy-MM-dd HH:mm:ss')"
    )
    assert len(ask(log_root, asked.format(f"{today} 00:00:00", "2999-01-01 00:00:00"))) == 5
    assert ask(log_root, asked.format("2999-01-01", "2999-01-02 00:00:00")) == []
    assert ask(
        log_root,
        "SELECT PHOENIX_ROW_TIMESTAMP() = _commit_timestamp, id FROM product ORDER BY id",
    ) == [(True, 1), (True, 10)]
    ((first,), *_) = ask(log_root, "SELECT PHOENIX_ROW_TIMESTAMP() FROM product_cdc")
    assert first.tzinfo is not None
    assert ask(
        log_root,
        "SELECT id, \"CDC JSON\"->>'event_type' FROM product_cdc WHERE id IN (2, 10) AND "
        "PHOENIX_ROW_TIMESTAMP() BETWEEN $from AND now()",
        parameters={"from": first.isoformat()},
    ) == [(2, "upsert"), (2, "delete"), (10, "upsert")]
    with pytest.raises(InvalidRequest, match="pattern 'dddd'; did you mean dd"):
        ask(log_root, "SELECT TO_DATE('1', 'dddd')")


def test_only_what_is_asked_for_is_read(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC product_cdc ON product")
    plan = str(ask(log_root, "EXPLAIN SELECT id FROM product_cdc WHERE id = 2")[0][0])
    assert "1 key; columns _commit_timestamp, id" in plan
    assert ask(log_root, "SELECT count(*) FROM product_cdc") == [(5,)]
    described = ask(log_root, "DESCRIBE product_cdc")
    assert [row[0] for row in described] == ["PHOENIX_ROW_TIMESTAMP()", "id", "CDC JSON"]
    assert [row[-1] for row in described] == [None, None, "INCLUDE (CHANGE), SALT_BUCKETS = 1"]
    options = "INCLUDE (PRE, POST), MAX_LOOKBACK = '12 hours', SALT_BUCKETS = 4"
    define(log_root, f"ALTER CDC product_cdc SET {options}")
    # What it says can be written as it stands.
    told = ask(log_root, "DESCRIBE product_cdc")[-1][-1]
    define(log_root, f"ALTER CDC product_cdc SET {told}")
    assert ask(log_root, "DESCRIBE product_cdc")[-1][-1] == told == options.replace(" hours", "h")


def test_names_are_those_of_the_newest_schema(log_root: Path) -> None:
    """The row's key changes too: its old key is deleted, its new one inserted."""
    products(log_root)
    renamed = SchemaMapping.parse(
        """
        [entity_types.article]
        renamed_from = "product"
        key = ["number"]
        [entity_types.article.columns]
        number = { type = "BIGINT", renamed_from = "id" }
        title = { type = "VARCHAR", renamed_from = "name" }
        price = { dropped = true }
        """
    )
    define(log_root, "CREATE CDC product_cdc ON product INCLUDE (PRE, POST)")
    with LogWriter.open(log_root, "shop", mapping=renamed) as writer:
        old, new = (b'{"number":%d,"title":"lamp"}' % key for key in (10, 11))
        writer.append(
            [
                Mutation("article", "10", Operation.REMOVE, before=old),
                Mutation("article", "11", after=new),
            ]
        )
        writer.commit(publish=True)
    rows = images(log_root, "SELECT * FROM product_cdc WHERE number >= 10")
    lamp = {"title": "lamp", "price": "99999999.99"}
    assert rows == [
        (10, {"event_type": "upsert", "pre_image": {}, "post_image": lamp}),
        (10, {"event_type": "delete", "pre_image": {"title": "lamp"}}),
        (11, {"event_type": "upsert", "pre_image": {}, "post_image": {"title": "lamp"}}),
    ]  # fmt: skip
    assert ask(log_root, "SHOW CDC")[0][:2] == ("product_cdc", "article")


@pytest.mark.parametrize("known", [False, True])
def test_a_null_of_a_removal_is_believed_where_the_log_says_that_the_image_is_whole(
    log_root: Path, known: bool
) -> None:
    """Elsewhere its source may have sent the key alone: then nobody knows whether the row was in the view."""
    mapping = SchemaMapping.parse(
        """
        [entity_types.product]
        key = ["id"]
        [entity_types.product.columns]
        id = { type = "VARCHAR" }
        draft = { type = "BOOLEAN" }
        """
    )
    gone = b'{"id":"1","draft":null}'
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("product", "1", after=gone)])
        writer.append([Mutation("product", "1", Operation.REMOVE, before=gone)])
        writer.commit(publish=True)
    if known:
        notes = {"removed:product": "1-"}
        with CatalogWriter.open(log_root, "shop", writer="w", take_over=True) as noting:
            noting.commit(batch_id=0, source_positions=notes)
    define(log_root, "CREATE VIEW ready AS SELECT * FROM product WHERE draft IS NOT TRUE")
    define(log_root, "CREATE CDC ready_cdc ON ready")
    asked = "SELECT id, \"CDC JSON\" ->> 'event_type' FROM ready_cdc"
    if known:
        assert ask(log_root, asked) == [("1", "upsert"), ("1", "delete")]
    else:
        with pytest.raises(
            InvalidRequest, match=r"ready, 2:1: .* the whole row before.*--images full"
        ):
            ask(log_root, asked)


def test_encoded_values_come_decoded_and_exact(log_root: Path) -> None:
    mapping = SchemaMapping.parse(
        """
        [entity_types.product]
        key = ["id"]
        [entity_types.product.columns]
        id = { type = "VARCHAR" }
        price = { type = "DECIMAL(10,2)", encoding = "decimal.bytes(2)" }
        made = { type = "DATE", encoding = "debezium.Date" }
        """
    )
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        row = b'{"id":"01","price":"Eg==","made":19782,"more":12345678901234567890.10}'
        writer.append([Mutation("product", "01", after=row)])
        writer.commit(publish=True)
    define(log_root, "CREATE CDC product_cdc ON product INCLUDE (POST)")
    ((key, text),) = ask(log_root, 'SELECT id, "CDC JSON" FROM product_cdc')
    assert key == "01"
    assert text == (
        '{"event_type":"upsert","post_image":{"price":"0.18","made":"2024-02-29",'
        '"more":12345678901234567890.10}}'
    )


# What the log does not hold.


def test_images_that_the_source_did_not_send_are_an_error_that_says_what_to_do(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
        missing = image(1, PLACEHOLDER, "3.00")
        for mutation in (
            Mutation("product", "1", after=image(1, "a", "1.00"), changed=("id", "name", "price")),
            Mutation(
                "product", "1", before=image(1, "a", "1.00"), after=missing, changed=("price",)
            ),
            Mutation("product", "2", before=image(2, PLACEHOLDER, "1.00"), after=image(2, PLACEHOLDER, "2.00")),
        ):  # fmt: skip
            writer.append([mutation])
            writer.commit(publish=True)
    define(log_root, "CREATE CDC product_cdc ON product INCLUDE (CHANGE)")
    # What changed is known all the same; and what was not sent is in the row before.
    assert [row[1]["change_image"] for row in images(log_root, "SELECT * FROM product_cdc")] == [
        {"name": "a", "price": "1.00"},
        {"price": "3.00"},
        {"price": "2.00"},
    ]
    post = "SELECT /*+ CDC_INCLUDE(POST) */ * FROM product_cdc WHERE id = "
    assert images(log_root, f"{post} 1")[1][1]["post_image"] == {"name": "a", "price": "3.00"}
    with pytest.raises(
        InvalidRequest, match=r"product_cdc at 3:1: .*not send 'name'.*POST.*--images full"
    ):
        ask(log_root, f"{post} 2")
    with pytest.raises(InvalidRequest, match=r"product_cdc at 1:2: .*PRE.*--images full"):
        ask(log_root, "SELECT /*+ CDC_INCLUDE(PRE) */ * FROM product_cdc")


def test_images_that_retention_took_are_an_error_where_they_are_asked_for(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC product_cdc ON product")
    log = CommitLog.open(log_root / "shop")
    change_settings(log.store, log.view, {"bodies": 1_000_000}, 5, entity_type="product")
    expire(log.path, log.view.newest_timestamp + 2_000_000, at_once=True)
    with pytest.raises(BodiesExpired):
        ask(log_root, "SELECT * FROM product_cdc")
    assert ask(log_root, "SELECT id FROM product_cdc WHERE id < 3") == [(1,), (2,), (1,), (2,)]


# How far it reaches back.


def test_below_the_lookback_is_an_error_and_no_fewer_rows(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products(log_root)
    view = open_catalog(log_root, "shop").view
    define(log_root, "CREATE CDC product_cdc ON product MAX_LOOKBACK = '1 hour'")
    # An hour after version 3 was committed, and not so after version 4.
    now = view.timestamp_of(3) + 3_600_000_001
    monkeypatch.setattr("tailrace_server.sql.query.time.time_ns", lambda: now * 1_000)
    everything = "SELECT id FROM product_cdc"
    assert ask(log_root, everything) == [(10,)]
    since = f"{everything} WHERE PHOENIX_ROW_TIMESTAMP() >= make_timestamptz({{}})"
    assert ask(log_root, since.format(view.timestamp_of(3) + 1)) == [(10,)]
    with pytest.raises(PositionCompacted, match=r"product_cdc reaches back 1h.*MAX_LOOKBACK"):
        ask(log_root, since.format(view.timestamp_of(3)))
    define(log_root, "ALTER CDC product_cdc SET MAX_LOOKBACK = NONE")
    assert len(ask(log_root, since.format(view.timestamp_of(1)))) == 5
    trim(log_root / "shop", 3, now)
    assert len(ask(log_root, everything)) == 2
    with pytest.raises(PositionCompacted):
        ask(log_root, since.format(view.timestamp_of(1)))


def test_a_key_that_nobody_declared_is_a_text(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("product", "p 1", after=b'{"a":1}')])
        writer.commit(publish=True)
    define(log_root, "CREATE CDC product_cdc ON product")
    assert images(log_root, "SELECT * FROM product_cdc") == [
        ("p 1", {"event_type": "upsert", "change_image": {"a": "1"}})
    ]
    with pytest.raises(InvalidRequest, match=r"no column .id.; known: .*, _primary_key"):
        images(log_root, "SELECT id FROM product_cdc")


def test_a_key_that_is_not_of_its_columns_is_named(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
        writer.append([product(1, "a", "1.00"), Mutation("product", "x", Operation.REMOVE)])
        writer.commit(publish=True)
    define(log_root, "CREATE CDC product_cdc ON product")
    with pytest.raises(InvalidRequest, match=r"product_cdc at 1:3: column 'id'"):
        ask(log_root, "SELECT * FROM product_cdc")


def test_the_documented_statements_answer_as_documented(log_root: Path) -> None:
    products(log_root)
    page = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
    views, tables = (page.partition(f"\n## {each}\n")[2] for each in ("Views", "Change tables"))
    for section in (views, tables):
        for text in section.partition("```sql\n")[2].partition("```")[0].split(";"):
            found = ask(log_root, text, may_define=True) if text.strip() else []
            if "INTERVAL 15 MINUTE" in text:
                shown = tables.split("```")[3].strip().splitlines()
                assert [line[line.index("{") :] for line in shown] == [row[-1] for row in found[:4]]
                assert len(found) == 5
    assert ask(log_root, "SHOW TABLES") == [("product", "entity type", 3, "id")]


# On a view.


@pytest.mark.parametrize("seed", range(2))
def test_contract_42_50_a_view_has_the_changes_that_enter_stay_and_leave(
    log_root: Path, seed: int
) -> None:
    """The same fold, of the rows that are in before or after, and with the view's columns."""
    wanted = written_and_folded(log_root, seed)
    limit = Decimal(10**24) / 30
    define(log_root, f"CREATE VIEW dear AS SELECT note FROM item WHERE price > {limit:.2f}")
    define(log_root, "CREATE CDC dear_cdc ON dear INCLUDE (PRE, POST, CHANGE)")

    def shown(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name == "note"}

    expected: list[tuple[Any, ...]] = []
    for shelf, id, event in chain(*wanted):
        pre, post = event.get("pre_image", {}), event.get("post_image", {})
        was, stays = (Decimal(row.get("price", 0)) > limit for row in (pre, post))
        if event["event_type"] == "truncate":
            expected.append((shelf, id, event))
        elif stays:
            image = shown(pre) if was else {}
            change = shown(event["change_image"] if was else post)
            event = {"event_type": "upsert", "pre_image": image, "change_image": change}
            expected.append((shelf, id, {**event, "post_image": shown(post)}))
        elif was:
            kind = "delete" if event["event_type"] == "upsert" else event["event_type"]
            expected.append((shelf, id, {"event_type": kind, "pre_image": shown(pre)}))
    assert 5 < len(expected) < sum(map(len, wanted))
    assert images(log_root, "SELECT * FROM dear_cdc") == expected
    assert images(log_root, "SELECT * FROM dear_cdc WHERE shelf = 'a'") == [
        each for each in expected if each[0] == "a"
    ]
    with pytest.raises(InvalidRequest, match="view dear is needed by dear_cdc: DROP CDC dear_cdc"):
        define(log_root, "DROP VIEW dear")


def test_who_is_in_a_view_is_not_guessed(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
        long = PLACEHOLDER
        for mutation in (
            Mutation("product", "1", before=image(1, "a", "1.00"), after=image(1, "a", "2.00")),
            Mutation("product", "2", after=image(2, "a", "1.00"), changed=("id", "name", "price")),
            # What was not sent after is not taken from before: the state of the view does not have it either.
            Mutation("product", "3", before=image(3, "a", "1.00"), after=image(3, long, "2.00")),
        ):
            writer.append([mutation])
            writer.commit(publish=True)
    define(log_root, "CREATE VIEW a AS SELECT price FROM product WHERE name = 'a'")
    define(log_root, "CREATE CDC a_cdc ON a")
    asked = "SELECT * FROM a_cdc WHERE id = "
    assert images(log_root, f"{asked} 1") == [
        (1, {"event_type": "upsert", "change_image": {"price": "2.00"}})
    ]
    with pytest.raises(InvalidRequest, match=r"view a, 2:1: .*the row before.*--images full"):
        ask(log_root, f"{asked} 2")
    with pytest.raises(InvalidRequest, match=r"view a, 3:1: .*send 'name'.*--images full"):
        ask(log_root, f"{asked} 3")
