"""What the operator's page is told."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tailrace.criteria import Criteria
from tailrace_server.api.operator import RecentLines
from tailrace_server.api.operator.overview import rates
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tests.conformance.http_drivers import listening
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.inprocess import ModelWriter

OPERATIONS = Path("docs/operations.md").read_text()


async def test_an_empty_server_says_so(log_root: Path) -> None:
    async with Engine(log_root) as engine, listening(engine) as face:
        found = await _overview(str(face.address))
    assert found["status"] == "serving"
    assert [found[name] for name in ("catalogs", "subscriptions", "publishers", "lines")] == [
        [],
        [],
        [],
        [],
    ]
    assert found["memory"]["budget_bytes"] == engine.settings.memory_bytes
    assert 2 <= found["ask_again_s"] <= 120


async def test_the_accounts_of_memory_add_up_to_the_process(log_root: Path) -> None:
    async with Engine(log_root) as engine, listening(engine) as face:
        with engine.criteria.charge(100), engine.pages.charge(1_000):
            memory = (await _overview(str(face.address)))["memory"]
        accounts = {each["name"]: each for each in memory["accounts"]}
    assert sum(each["bytes"] for each in accounts.values()) == memory["process_bytes"]
    assert (accounts["criteria"]["bytes"], accounts["pages of history"]["bytes"]) == (100, 1_000)
    assert accounts.pop("rest")["bytes_max"] is None
    for name, each in accounts.items():
        assert f"| {name} | " in OPERATIONS
        assert each["bytes"] <= each["bytes_max"] <= memory["budget_bytes"] // 2


async def test_catalogs_name_versions_rates_and_writers(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)], [upsert(2), upsert(3)])
    writer.commit([upsert(4)])
    async with Engine(log_root) as engine, listening(engine) as face:
        [shop] = (await _overview(str(face.address)))["catalogs"]
    assert (shop["catalog"], shop["committed"], shop["published"]) == ("shop", 3, 2)
    assert shop["oldest"] == "1:0"
    assert shop["newest_age_s"] >= 0
    assert shop["records_per_s"] >= shop["versions_per_s"] >= 0
    [newest] = shop["writers"]
    assert newest["is_newest"]
    assert newest["host"]
    assert (newest["name"], newest["batch"] >= 0, newest["entry"] > 0) == ("log-writer", True, True)


async def test_a_catalog_that_cannot_be_read_is_there_with_the_reason(
    log_root: Path, writer: ModelWriter
) -> None:
    (log_root / "broken").mkdir()
    (log_root / "broken" / "catalog.json").write_bytes(b"{}\n")
    async with Engine(log_root) as engine, listening(engine) as face:
        found = await _overview(str(face.address))
    broken, shop = found["catalogs"]
    assert (broken["catalog"], shop["catalog"]) == ("broken", "shop")
    assert "catalog.json" in broken["error"]
    assert (found["status"], found["faults"][0]["subject"]) == ("degraded", "broken")


async def test_subscriptions_and_publishers_are_told_in_words(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine, listening(engine) as face:
        await engine.subscribe(
            ANONYMOUS,
            "shop",
            (Criteria(entity_type=("product",)),),
            codec=JSON,
            peer=Peer("grpc", "10.0.0.7:5", "tailrace-python"),
        )
        found = await _overview(str(face.address))
    [subscription], [publisher] = found["subscriptions"], found["publishers"]
    assert (subscription["peer"], subscription["criteria_text"]) == ("10.0.0.7:5", "product")
    assert (publisher["subscriptions"], publisher["criteria_text"]) == (1, "product")
    assert found["counters"]["subscriptions"] == 1


async def test_lines_of_the_log_are_shown(log_root: Path) -> None:
    lines = RecentLines()
    lines.handle(_record("disk is slow", took_s=3))
    async with Engine(log_root) as engine, listening(engine, lines=lines) as face:
        [line] = (await _overview(str(face.address)))["lines"]
    assert (line["level"], line["event"]) == ("error", "disk is slow")
    assert line["fields"] == {"took_s": "3"}
    json.dumps(line)


async def test_rates_count_the_last_minute_alone(log_root: Path, writer: ModelWriter) -> None:
    writer.write([upsert(1)], [upsert(2), upsert(3)])
    async with Engine(log_root) as engine:
        view = await engine.view(ANONYMOUS, "shop")
    newest = view.newest_timestamp
    # Two versions are five records with their leads.
    assert rates(view, newest) == (2 / 60, 5 / 60)
    assert rates(view, newest + 61_000_000) == (0, 0)


async def _overview(address: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S) as http:
        answer = await http.get("/overview")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _record(event: str, **fields: object) -> logging.LogRecord:
    """Return what structlog hands to the logging module."""
    said = {"event": event, "level": "error", **fields}
    return logging.LogRecord("tailrace.test", logging.ERROR, "", 0, said, (), None)
