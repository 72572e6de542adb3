"""What ``ps`` and ``top`` show, on terminals of any size."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tailrace_server.cli.operator.tables import amount, shown

SUBSCRIPTION: dict[str, Any] = {
    "catalog": "shop",
    "lag_records": 1_234_567,
    "lag_s": 4.25,
    "mode": "resync",
    "principal": "anonymous",
    "peer": "10.0.0.7:50112",
    "transport": "graphql_websocket",
    "delivered": 17,
    "demand": None,
    "resyncs": 2,
    "age_s": 3_700.0,
    "client": "evil\x1b[31m",
    "criteria_text": "order or product, key 17; or " + "x" * 300,
}
FOUND: dict[str, Any] = {
    "status": "degraded",
    "version": "0.1.0",
    "up_s": 90.0,
    "memory": {
        "process_bytes": 100 << 20,
        "budget_bytes": 1 << 30,
        "accounts": [
            {"name": "cache", "bytes": 60 << 20, "bytes_max": 1 << 29},
            {"name": "criteria", "bytes": 0, "bytes_max": 1 << 27},
            {"name": "rest", "bytes": 40 << 20, "bytes_max": None},
        ],
    },
    "counters": {"subscriptions": 61, "captures_delivered": 5, "resyncs": 1},
    "faults": [{"kind": "disk_full", "subject": "/log", "reason": "free some"}],
    "catalogs": [
        {
            "catalog": "shop",
            "published": 7,
            "committed": 8,
            "newest_age_s": 0.5,
            "records_per_s": 12.3,
            "oldest": "1:0",
            "log_bytes": 1 << 20,
            "subscriptions": 61,
            "publishers": 32,
            "writers": [{"name": "ingest", "host": "vm", "batch": 6, "entry": 9}],
        },
        {"catalog": "broken", "error": "catalog.json: not a catalog"},
    ],
    "subscriptions": [SUBSCRIPTION] * 60,
    "publishers": [
        {
            "catalog": "shop",
            "subscriptions": 1,
            "ring_bytes": 5,
            "criteria_bytes": 1 << 20,
            "ring_evicted": 0,
            "conditions_cpu_s": 1.5,
            "conditions_image_bytes": 3 << 20,
            "criteria_text": "everything",
        }
    ]
    * 32,
    "lines": [{"timestamp": 0, "level": "error", "event": "fault", "fields": {"kind": "disk"}}],
}
EMPTY = {**FOUND, "faults": [], "catalogs": [], "subscriptions": [], "publishers": [], "lines": []}


def printed(found: dict[str, Any], width: int, rows: int | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(shown(found, "http://127.0.0.1:7412", width, rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal_and_no_row_takes_two(width: int) -> None:
    lines = printed(FOUND, width)
    assert max(map(len, lines)) <= width
    assert sum("1,234,567" in line for line in lines) == (60 if width > 40 else 0)
    assert not any("\x1b" in line for line in lines)


def test_a_narrow_terminal_has_what_matters_and_a_wide_one_all() -> None:
    narrow, wide = ("\n".join(printed(FOUND, width)) for width in (80, 200))
    for head in ("BEHIND", "LAG", "MODE", "WHO", "ASKED FOR", "PUBLISHED", "RECORDS/S"):
        assert head in narrow
    for head in ("CLIENT", "AGE", "RESYNCS", "DEMAND", "TRANSPORT", "WRITER"):
        assert head not in narrow
        assert head in wide
    assert "10.0.0.7:50112" in narrow
    assert "ingest on vm, batch 6" in wide
    assert "/log: disk_full free some" in narrow


@pytest.mark.parametrize("rows", [24, 40])
def test_top_fits_the_terminal(rows: int) -> None:
    lines = printed(FOUND, 120, rows)
    assert len(lines) <= rows
    assert any("61 subscribers; " in line for line in lines)


def test_the_accounts_of_memory_are_shown_where_they_hold_some() -> None:
    [line] = (each for each in printed(FOUND, 120) if each.startswith("memory"))
    assert line == "memory 100 MiB of 1 GiB (cache 60 MiB, rest 40 MiB)"


def test_an_empty_server_is_shown_too() -> None:
    assert "0 publishers" in printed(EMPTY, 80)


def test_amounts_are_short() -> None:
    assert [amount(each) for each in (0, 999, 1 << 20, 1 << 40, None)] == [
        "0 B",
        "999 B",
        "1 MiB",
        "1 TiB",
        "–",
    ]
