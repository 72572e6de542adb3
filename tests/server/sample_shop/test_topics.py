"""The shop's feed: deterministic, whole, and as hard as a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace_server.sample_shop.topics import METADATA, make_feed, net_changes, write_feed

if TYPE_CHECKING:
    from pathlib import Path


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    assert make_feed(7, 50).messages == make_feed(7, 50).messages
    assert make_feed(7, 50).messages != make_feed(8, 50).messages


def test_every_line_is_json_and_every_end_counts_its_rows() -> None:
    rows: dict[str, int] = {}
    for message in make_feed(7, 300).messages:
        body = orjson.loads(message.line)
        if message.topic == METADATA:
            if body["status"] == "END":
                assert rows.pop(body["id"]) == body["event_count"]
        elif body["value"] is not None and body["value"]["transaction"] is not None:
            name = body["value"]["transaction"]["id"]
            rows[name] = rows.get(name, 0) + 1
    assert rows == {}


def test_the_feed_holds_what_real_feeds_hold() -> None:
    feed = make_feed(7, 1_000)
    text = "\n".join(message.line for message in feed.messages)
    for hard in (
        "9007199254740993",
        "0.10",
        "1e2",
        "12345678901234.567890123456789",
        "🌊",
        "\\u00e0",
    ):
        assert hard in text
    ops = {step.op for t in feed.transactions for step in t.steps}
    assert ops == {"r", "c", "u", "d"}
    assert any(len(net_changes(t)) < len(t.steps) for t in feed.transactions)


def test_files_appear_whole_part_by_part(tmp_path: Path) -> None:
    feed = make_feed(7, 100)
    seen: list[str] = []
    for part in write_feed(feed, tmp_path, parts=3):
        for file in part:
            seen.extend(file.read_text(encoding="utf-8").splitlines())
    assert sorted(seen) == sorted(message.line for message in feed.messages)
    assert len(list(tmp_path.iterdir())) > 3


def test_a_folder_with_a_feed_gets_no_second_one(tmp_path: Path) -> None:
    feed = make_feed(7, 10)
    list(write_feed(feed, tmp_path, parts=1))
    with pytest.raises(FileExistsError, match="has a feed already"):
        list(write_feed(feed, tmp_path, parts=1))
