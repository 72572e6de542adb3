"""Values that a column's type cannot hold: an error of their column alone, or NULL and their exact text."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.sql.test_query import ask

if TYPE_CHECKING:
    from pathlib import Path


class Kind(NamedTuple):
    """A column with a value that fits it and one that does not."""

    sql_type: str
    encoding: str
    fits: str
    value: Any
    misfit: str
    text: str


KINDS = {
    "local": Kind(
        *("TIMESTAMP", "json", '"2024-02-29T10:00:00"', datetime(2024, 2, 29, 10)),
        *('"infinity"', "infinity"),
    ),
    "moment": Kind(
        *("TIMESTAMP WITH TIME ZONE", "debezium.ZonedTimestamp", '"2024-02-29T10:00:00Z"'),
        *(datetime(2024, 2, 29, 10, tzinfo=UTC), '"-infinity"', "-infinity"),
    ),
    "micros": Kind(
        *("TIMESTAMP", "debezium.MicroTimestamp", "1", datetime(1970, 1, 1, 0, 0, 0, 1)),
        *("9223372036825200000", "9223372036825200000"),
    ),
    "day": Kind("DATE", "json", '"2024-02-29"', date(2024, 2, 29), '"0000-00-00"', "0000-00-00"),
    "took": Kind(
        "TIME", "debezium.MicroTime", "1", time(0, 0, 0, 1), "-3020399000000", "-838:59:59"
    ),
    "clock": Kind("TIME", "json", '"13:37:00"', time(13, 37), '"24:00:00"', "24:00:00"),
    "price": Kind("DECIMAL(9,2)", "decimal.string", '"1.5"', Decimal("1.50"), '"NaN"', "NaN"),
    "wide": Kind(
        *("DECIMAL(65,30)", "decimal.string", '"1.5"', f"1.5{'0' * 29}", '"Infinity"', "Infinity"),
    ),
    "data": Kind("VARBINARY", "base64", '"AA=="', b"\0", '"x"', "x"),
}


@pytest.fixture
def items(log_root: Path) -> Path:
    """Write a row whose values fit, and one whose values do not."""
    columns = (
        f'{name} = {{ type = "{each.sql_type}", encoding = "{each.encoding}" }}'
        for name, each in KINDS.items()
    )
    mapping = SchemaMapping.parse("\n".join(("[entity_types.item.columns]", *columns)))
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        for key, place in (("1", "fits"), ("2", "misfit")):
            values = (f'"{name}":{getattr(each, place)}' for name, each in KINDS.items())
            image = f'{{"id":{key},{",".join(values)}}}'.encode()
            writer.append([Mutation("item", key, after=image)])
        writer.commit(publish=True)
    return log_root


def null(root: Path, text: str) -> list[tuple[Any, ...]]:
    return ask(root, text, on_misfit=OnMisfit.NULL)


def test_every_value_comes_typed_or_as_its_exact_text(items: Path) -> None:
    values = [each.value for each in KINDS.values()]
    texts = {name: each.text for name, each in KINDS.items()}
    state = null(items, f"SELECT {', '.join(KINDS)}, _misfits FROM item ORDER BY id")
    assert state[0] == (*values, None)
    assert state[1][:-1] == (None,) * len(KINDS)
    assert json.loads(state[1][-1]) == texts
    changes = null(items, "SELECT after, _misfits FROM CHANGES('item')")
    assert [changes[0][0][name] for name in KINDS] == values
    assert changes[0][1] is None
    assert json.loads(changes[1][1]) == {"after": texts}
    # The column has the misfits of all columns, also of those that the statement does not name.
    alone = null(items, "SELECT _misfits FROM item WHERE id = 2")
    assert json.loads(alone[0][0]) == texts
    in_changes = null(items, "SELECT _misfits FROM CHANGES('item') WHERE _primary_key = '2'")
    assert json.loads(in_changes[0][0]) == {"after": texts}
    ((text,),) = null(
        items, "SELECT coalesce(took::TEXT, _misfits->>'took') FROM item WHERE id = 2"
    )
    assert text == "-838:59:59"


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_misfit_ends_only_the_statements_that_read_its_column(items: Path, name: str) -> None:
    ask(items, "CREATE VIEW seen AS SELECT * FROM item", may_define=True)
    for source in ("item", "seen", "CHANGES('item')", "CHANGES('seen')"):
        dot = "after." if "(" in source else ""
        with pytest.raises(InvalidRequest, match=rf"item at \d+:1: column '{name}'.*misfits null"):
            ask(items, f"SELECT {dot}{name} FROM {source}")
        assert len(ask(items, f"SELECT {dot}id FROM {source}")) == 2
        assert len(ask(items, f"SELECT count(*) FROM {source}")) == 1
        assert len(null(items, f"SELECT {dot}{name}, _misfits FROM {source}")) == 2
    others = ", ".join(each for each in KINDS if each != name)
    for text in (
        f"SELECT i.id, * EXCLUDE ({others}, {name.upper()}) FROM item i",
        f"SELECT DISTINCT * EXCLUDE ({others}, {name}) FROM item WHERE id > 0",
        f"SELECT * EXCLUDE ({others}, {name}, id) FROM item",
    ):
        assert len(ask(items, text)) == 2
    for text in (
        f"SELECT * EXCLUDE ({others}) FROM item",
        f"SELECT * EXCLUDE ({others}, {name}) FROM item WHERE {name} IS NOT NULL",
        f"SELECT * EXCLUDE ({others}, {name}) FROM (SELECT * FROM item)",
        f"SELECT * EXCLUDE ({others}, {name}) FROM item NATURAL JOIN item j",
    ):
        with pytest.raises(InvalidRequest, match="column '"):
            ask(items, text)


def test_a_key_of_a_change_table_may_be_a_misfit(log_root: Path) -> None:
    mapping = SchemaMapping.parse(
        '[entity_types.item]\nkey = ["day"]\n[entity_types.item.columns]\nday = { type = "DATE" }'
    )
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("item", "infinity", after=b'{"day":"infinity","name":"a"}')])
        writer.commit(publish=True)
    ask(log_root, "CREATE CDC item_cdc ON item", may_define=True)
    with pytest.raises(InvalidRequest, match=r"item_cdc at 1:2: .*with misfits null"):
        ask(log_root, "SELECT day FROM item_cdc")
    found = null(log_root, 'SELECT day, _misfits, "CDC JSON" FROM item_cdc')
    assert found[0][:2] == (None, '{"day":"infinity"}')


def test_a_statement_that_does_not_ask_for_misfits_has_no_such_column(items: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no column '_misfits'"):
        ask(items, "SELECT _misfits FROM item")
