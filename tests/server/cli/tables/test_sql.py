"""``tailrace sql`` over a log: its forms of output, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.cli.tables.sql import sql
from tailrace_server.wal.log_writer import LogWriter
from tests.server.cli.command_line import call
from tests.server.sql.misfits import MISFITS, write_misfit
from tests.server.wal.logs import update, upsert

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.capture import CaptureFixture

_CHANGES = "SELECT _commit_version, before, after.value FROM CHANGES('order') ORDER BY 1"


ask = partial(call, sql, catalog="shop")


@pytest.fixture
def orders(log_root: Path) -> Path:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("a")])
        writer.append([update("a", 1, 7)])
        writer.commit(publish=True)
    return log_root


def shown(capfd: CaptureFixture[str], root: Path, text: str, **more: Any) -> tuple[str, str]:
    assert ask(statement=text, log=root, **more) == 0
    out, err = capfd.readouterr()
    return out, err


def test_a_table_is_shown_with_its_version(orders: Path, capfd: CaptureFixture[str]) -> None:
    out, err = shown(capfd, orders, 'SELECT id, value FROM "order"')
    assert [line.split() for line in out.splitlines()] == [["id", "value"], ["a", "7"]]
    assert "1 row as of version 2" in err
    out, _ = shown(capfd, orders, 'SELECT id, value FROM "order" WHERE value > 7')
    assert out.split() == ["id", "value"]


def test_a_value_that_does_not_fit_is_null_with_its_text_on_request(
    log_root: Path, capfd: CaptureFixture[str]
) -> None:
    write_misfit(log_root)
    text = "SELECT day, _misfits FROM item"
    out, _ = shown(capfd, log_root, text, as_json=True, on_misfit="null")
    assert json.loads(out) == {"day": None, "_misfits": MISFITS}
    with pytest.raises(InvalidRequest, match="--misfits null"):
        ask(statement="SELECT day FROM item", log=log_root)
    with pytest.raises(InvalidRequest, match="write refuse or null"):
        ask(statement=text, log=log_root, on_misfit="raise")


def test_the_environment_names_the_server_where_there_is_no_log_root(
    orders: Path, capfd: CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 'SELECT count(*) AS n FROM "order"'
    with pytest.raises(InvalidRequest, match="TAILRACE_SERVER"):
        ask(statement=count)
    monkeypatch.setenv("TAILRACE_SERVER", "there:is:none")
    with pytest.raises(InvalidRequest, match="there:is:none"):
        ask(statement=count)
    out, _ = shown(capfd, orders, count, as_json=True)
    assert json.loads(out) == {"n": 1}


def test_lines_of_json_and_csv_have_every_value(orders: Path, capfd: CaptureFixture[str]) -> None:
    out, err = shown(capfd, orders, _CHANGES, as_json=True)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"_commit_version": 1, "before": None, "value": 1},
        {"_commit_version": 2, "before": {"id": "a", "value": 1}, "value": 7},
    ]
    assert not err
    out, _ = shown(capfd, orders, _CHANGES, csv=True)
    assert out.splitlines() == [
        '"_commit_version","before","value"',
        "1,,1",
        '2,"{""id"":""a"",""value"":1}",7',
    ]
    out, _ = shown(
        capfd,
        orders,
        "SELECT 1.50::DECIMAL(5,2) d, 'ab'::BLOB b, TIMESTAMP '2026-05-04' t",
        as_json=True,
    )
    assert json.loads(out) == {"d": "1.50", "b": "YWI=", "t": "2026-05-04T00:00:00"}


def test_values_that_json_or_python_have_no_type_for_are_texts_in_every_form(
    orders: Path, capfd: CaptureFixture[str]
) -> None:
    text = (
        "SELECT INTERVAL '14 months -3 days 1.5 seconds' AS i, [INTERVAL 0 DAY] AS l, true AS b, "
        "TIMESTAMP_NS '2026-05-04 00:00:00.000000001' AS t"
    )
    out, _ = shown(capfd, orders, text, as_json=True)
    time = "2026-05-04 00:00:00.000000001"
    assert json.loads(out) == {"i": "P14M-3DT1.5S", "l": ["PT0S"], "b": True, "t": time}
    out, _ = shown(capfd, orders, text, csv=True)
    assert out.splitlines()[1] == f'"P14M-3DT1.5S","[""PT0S""]",true,{time}'
    out, _ = shown(capfd, orders, text)
    assert out.splitlines()[1].split("  ") == ["P14M-3DT1.5S", '["PT0S"]', "true", time]
    out, _ = shown(capfd, orders, "SELECT 'nan'::DOUBLE AS x", as_json=True)
    assert json.loads(out) == {"x": "NaN"}
    with pytest.raises(InvalidRequest, match="two columns of the answer have the name 'x'"):
        ask(statement="SELECT 1 AS x, 2 AS x", log=orders, as_json=True)


def test_arrow_is_a_stream(orders: Path, capfdbinary: CaptureFixture[bytes]) -> None:
    assert ask(statement=_CHANGES, log=orders, arrow=True) == 0
    out, _ = capfdbinary.readouterr()
    with pa.ipc.open_stream(out) as stream:
        assert stream.read_all().column("value").to_pylist() == [1, 7]


def test_parameters_are_values_and_never_text(orders: Path, capfd: CaptureFixture[str]) -> None:
    text = 'SELECT count(*) n FROM "order" WHERE id = $k'
    for value, count in (("a", 1), ("' OR 1=1 --", 0)):
        out, _ = shown(capfd, orders, text, parameter=[f"k={value}"], as_json=True)
        assert json.loads(out) == {"n": count}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"parameter": ["k"]}, "NAME=VALUE"),
        ({"as_json": True, "csv": True}, "give one of them"),
        ({"timeout_s": "soon"}, "soon"),
        ({"memory_bytes": "much"}, "much"),
    ],
)
def test_what_makes_no_sense_is_refused(orders: Path, more: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        ask(statement="SELECT 1", log=orders, **more)
