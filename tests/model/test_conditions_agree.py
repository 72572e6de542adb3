"""One condition has the same rows everywhere: as a filter of state, history and live changes, and as a view.

Rows and conditions are generated. What a condition has to say of each kind of value is tested beside the
evaluator; here the ways to read are compared with each other.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Content, Criteria, Operation, Since
from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.grants.test_views import history, subscribe
from tests.server.reads.test_state import rows_of, state
from tests.server.sql.test_change_tables import define
from tests.server.sql.test_query import ask
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAPPING: Final = SchemaMapping.parse(
    """
    [entity_types.item]
    key = ["id"]
    [entity_types.item.columns]
    id = { type = "BIGINT" }
    name = { type = "VARCHAR" }
    note = { type = "JSON" }
    loose = {}
    total = { type = "DECIMAL" }
    price = { type = "DECIMAL(8,2)" }
    big = { type = "DECIMAL(65,3)" }
    ratio = { type = "DOUBLE" }
    sold = { type = "BOOLEAN" }
    day = { type = "DATE" }
    clock = { type = "TIME" }
    made = { type = "TIMESTAMP" }
    sent = { type = "TIMESTAMP WITH TIME ZONE" }
    """
)
TEXTS: Final = [
    "",
    "a%",
    "a\\%",
    "a\\",
    "\\",
    "ab",
    "aB",
    "\u0130",
    "i",
    "I",
    "\u0131",
    "ß",
    "\u017f",
    "\u212a",
    "x\ny",
]
NUMBERS: Final = ["0", "-0.0", "1", "1.00", "1.5", "-2", "0.1", "1e2"]
ODD_NUMBERS: Final = ["1e400", "-1e-2147483647", "1e" + "9" * 20, "1" * 90, str(2**256 + 1)]
MIXED: Final = [
    *('"a"', '"1"', '"ab"', "true", "false", "null", '{"a":1}', "[1e400]", '"true"'),
    *NUMBERS,
    *ODD_NUMBERS,
]
DAYS: Final = ["0001-01-01", "2024-02-29", "9999-12-31"]
VALUES: Final[dict[str, list[str]]] = {
    "name": [json.dumps(each, ensure_ascii=False) for each in TEXTS],
    "note": MIXED,
    "loose": MIXED,
    "total": [*NUMBERS, *ODD_NUMBERS, "9" * 50, "0." + "0" * 45 + "1"],
    "price": ["0", "0.01", "1.00", "-2", "999999.99"],
    "big": [*NUMBERS[:4], "9" * 60, "-" + "9" * 40],
    "ratio": ["0.1", "-0.0", "0", "1e300"],
    "sold": ["true", "false"],
    "day": [f'"{each}"' for each in DAYS],
    "clock": ['"00:00:00"', '"13:37:00.25"', '"23:59:59.999999"'],
    "made": [f'"{each}T{time}"' for each in DAYS for time in ("00:00:00", "13:37:00.123456")],
    "sent": ['"2024-02-29T00:00:00Z"', '"2024-02-29T01:00:00+01:00"', '"2024-02-28T23:59:59.5Z"'],
}
PATTERNS: Final = [
    "%",
    "a\\%",
    "%\\\\%",
    "%\\\\",
    "_",
    "i",
    "I",
    "\u0130",
    "\u212a",
    "S",
    "ss",
    "a_",
    "%\\_%",
    "a!%",
]
LITERALS: Final[dict[str, list[str]]] = {
    "name": ["'a'", "'a\\%'", "'ab'", "'İ'", "NULL"],
    "note": ["'a'", "'1'", "1", "0", "1.5", "TRUE", "NULL"],
    "loose": ["'a'", "'ab'", "0", "1", "100", "FALSE", "NULL"],
    "total": [
        "0",
        "1",
        "1.5",
        "0.1",
        "1e400",
        "-1e-400",
        "99999999999999999999999999999999999999999",
    ],
    "price": ["0", "0.005", "1", "1000000", "-2", "NULL"],
    "big": ["0", "1", "-1.0005", "1e59", "1e70"],
    "ratio": ["0", "0.1", "CAST('NaN' AS DOUBLE)", "1e300"],
    "sold": ["TRUE", "FALSE", "NULL"],
    "day": ["'2024-02-29'", "DATE '0001-01-01'", "NULL"],
    "clock": ["'13:37:00.25'", "TIME '00:00:00'"],
    "made": ["'2024-02-29'", "TIMESTAMP '2024-02-29 13:37:00.1234565'", "NULL"],
    "sent": ["'2024-02-29T00:00:00Z'", "TIMESTAMPTZ '2024-02-29 01:00:00+01:00'"],
}


@st.composite
def leaves(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from([*LITERALS]))
    one, other = (draw(st.sampled_from(LITERALS[column])) for _ in range(2))
    no = draw(st.sampled_from(["", "NOT "]))
    match draw(st.sampled_from(["order", "in", "between", "null", "distinct", "like", "like"])):
        case "order":
            return f"{column} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {one}"
        case "in":
            return f"{column} {no}IN ({one}, {other})"
        case "between":
            return f"{column} {no}BETWEEN {one} AND {other}"
        case "null":
            return f"{column} IS {no}NULL"
        case "distinct":
            return f"{column} IS {no}DISTINCT FROM {one}"
        case _:
            like = draw(st.sampled_from(["LIKE", "ILIKE"]))
            escape = draw(st.sampled_from(["", "", " ESCAPE '!'", " ESCAPE ''"]))
            return f"name {no}{like} '{draw(st.sampled_from(PATTERNS))}'{escape}"


conditions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=3,
)
images = st.one_of(
    st.fixed_dictionaries({name: st.sampled_from(found) for name, found in VALUES.items()}),
    st.fixed_dictionaries(
        {}, optional={name: st.sampled_from([*found, "null"]) for name, found in VALUES.items()}
    ),
)
changes = st.lists(st.tuples(st.integers(1, 8), st.none() | images), min_size=8, max_size=16)


def mutations(found: Iterable[tuple[int, dict[str, str] | None]]) -> list[Mutation]:
    """Return the changes of rows, each with the whole image before; None removes a row."""
    rows: dict[int, bytes] = {}
    made = []
    for key, image in found:
        before = rows.get(key)
        if image is None:
            # NULL in the image of a removal says nothing: only a row with all of its values is removed.
            if before is not None and before.count(b'":') > len(VALUES) and b"null" not in before:
                del rows[key]
                made.append(Mutation("item", str(key), Operation.REMOVE, before=before))
            continue
        members = "".join(f',"{name}":{value}' for name, value in image.items())
        rows[key] = after = f'{{"id":{key}{members}}}'.encode()
        changed = None if before is None else ("name",)  # of which kind matters to nothing here
        made.append(Mutation("item", str(key), before=before, after=after, changed=changed))
    return made


def write(root: Path, found: Iterable[Mutation]) -> None:
    """Write each change as a version of its own."""
    with LogWriter.open(root, "shop", mapping=MAPPING) as writer:
        for mutation in found:
            writer.append([mutation])
            writer.commit(publish=True)


def keys_in(captures: Iterable[dict[str, Any]]) -> list[str]:
    """Return the keys of the rows that are left when what enters is added and what leaves is taken away."""
    found: dict[str, None] = {}
    for each in captures:
        if each["transition"] == "LEAVE":
            del found[each["primaryKey"]]
        else:
            assert (each["primaryKey"] in found) == (each["transition"] == "UPDATE")
            found[each["primaryKey"]] = None
    return sorted(found)


def keys_of_changes(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the same of the changes of a view in SQL."""
    found: set[str] = set()
    for kind, key in rows:
        assert (key in found) == (kind != "insert")
        (found.discard if kind == "delete" else found.add)(key)
    return sorted(found)


MISFITS: Final = ("which is not exactly one", "cannot hold its value")


@contextmanager
def suppress_misfits() -> Iterator[None]:
    """Let the error pass of a value that is not one of the newest type of its column."""
    try:
        yield
    except InvalidRequest as error:
        if not any(each in str(error) for each in MISFITS):
            raise


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # to make an example smaller takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
@given(asked=st.lists(conditions, min_size=6, max_size=6), made=changes)
@example(
    asked=[
        "name LIKE 'a\\%'",
        "name LIKE '%\\\\%'",
        "note = 'a'",
        "note IN (0)",
        "name ILIKE 'i'",
        "name ILIKE 'İ'",
        "total > 0.5",
        "total IN (1)",
    ],
    made=[
        *((n, {"name": VALUES["name"][n]}) for n in range(len(TEXTS))),
        *((n + 20, {"note": MIXED[n]}) for n in range(len(MIXED))),
        *((n + 50, {"total": VALUES["total"][n]}) for n in range(10)),
    ],
)
async def test_contract_49_a_condition_has_the_same_rows_in_state_history_live_and_sql(
    asked: list[str], made: list[tuple[int, dict[str, str] | None]]
) -> None:
    """Half of the changes are in the log when the subscriptions begin; a view is of all columns, or of one."""
    found = mutations(made)
    half = len(found) // 2
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write(root, found[:half])
        async with Engine(root) as engine:
            begin: dict[str, Any] = {
                "start": Since(Position(0, 0)),
                "content": Content.BODY,
                "codec": JSON,
            }
            known = {}
            for number, condition in enumerate(asked):
                view = f"v{number}"
                columns = "*" if number % 2 else "id"
                text = f"CREATE VIEW {view} AS SELECT {columns} FROM item WHERE {condition}"
                criteria = Criteria(entity_type=("item",), area=Area.DATA, where=condition)
                try:
                    live = await subscribe(engine, criteria, **begin)
                except InvalidRequest:  # a condition that no way to read takes
                    with pytest.raises(InvalidRequest):
                        define(root, text)
                    continue
                define(root, text)
                followed = await subscribe(engine, Criteria(entity_type=(view,)), **begin)
                known[view] = criteria, live, followed
            write(root, found[half:])
            version = len(found)
            for view, (criteria, live, followed) in known.items():
                where = criteria.where
                read = await state(
                    engine, entity_type="item", where=where, wait_for_version=version
                )
                wanted = sorted(await rows_of(read))
                in_sql = ask(root, f"SELECT _primary_key FROM {view}")
                assert sorted(key for (key,) in in_sql) == wanted, where
                with suppress(
                    InvalidRequest
                ):  # SQL on the entity type has the same rows, or refuses
                    plain = ask(root, f"SELECT _primary_key FROM item WHERE {where}")
                    assert sorted(key for (key,) in plain) == wanted, where
                as_state = await rows_of(await state(engine, entity_type=view))
                assert sorted(as_state) == wanted, where
                past = await history(engine, criteria)
                assert keys_in(past) == wanted, where
                of_view = await history(engine, Criteria(entity_type=(view,)))
                assert keys_in(of_view) == wanted, where
                assert keys_in(await receive(live, len(past))) == wanted, where
                assert keys_in(await receive(followed, len(of_view))) == wanted, where
                asked_changes = f"SELECT _change_type, _primary_key FROM CHANGES('{view}')"
                # What is not one of the column's newest type is an error there, by name.
                with suppress_misfits():
                    assert keys_of_changes(ask(root, asked_changes)) == wanted, where


@pytest.mark.slow
@pytest.mark.parametrize("escape", ["", " ESCAPE '!'"])
@pytest.mark.parametrize("like", ["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
def test_plain_sql_matches_patterns_as_filters_do(tmp_path: Path, like: str, escape: str) -> None:
    """The condition of a view is evaluated by the filters, that of a statement by DuckDB."""
    write(tmp_path, mutations((n, {"name": VALUES["name"][n]}) for n in range(len(TEXTS))))
    for number, pattern in enumerate(PATTERNS):
        condition = f"name {like} '{pattern}'{escape}"
        view = f"SELECT id FROM v{number} ORDER BY id"
        try:
            define(tmp_path, f"CREATE VIEW v{number} AS SELECT id FROM item WHERE {condition}")
        except InvalidRequest:  # its pattern ends with the escape character
            with pytest.raises(InvalidRequest, match=r"(?i)pattern .*escape character"):
                ask(tmp_path, f"SELECT id FROM item WHERE {condition} ORDER BY id")
            continue
        found = ask(tmp_path, f"SELECT id FROM item WHERE {condition} ORDER BY id")
        assert found == ask(tmp_path, view), condition
        bound = f"SELECT id FROM item WHERE name {like} $p{escape} ORDER BY id"
        assert ask(tmp_path, bound, parameters={"p": pattern}) == found, condition


def test_an_ilike_with_the_value_of_a_column_is_refused(tmp_path: Path) -> None:
    write(tmp_path, mutations([(1, {"name": '"a"'})]))
    with pytest.raises(InvalidRequest, match=r"write lower\(…\) LIKE lower\(…\)"):
        ask(tmp_path, "SELECT id FROM item WHERE name ILIKE name")
