"""Cursors in files, and subscriptions that begin behind them."""

from __future__ import annotations

import asyncio
import os
from threading import Event
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import Cursor, CursorInvalid, FileCheckpoint
from tests.client.scripted import CATALOG_UUID, PATIENCE_S, Call, ScriptedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SAVED = Cursor(CATALOG_UUID, 7, 3, 1)


async def test_a_saved_cursor_is_loaded(tmp_path: Path) -> None:
    store = FileCheckpoint(tmp_path / "cursor")
    assert await store.load() is None
    for cursor in (SAVED, Cursor(CATALOG_UUID, 8, 0)):
        await store.save(cursor)
        assert await FileCheckpoint(tmp_path / "cursor").load() == cursor
    assert (tmp_path / "cursor").read_text() == f"{cursor}\n"
    assert os.listdir(tmp_path) == ["cursor"]


@pytest.mark.parametrize("content", [b"", b"\n", b"1.x", b"\xff\xfe", b"two\nlines\n"])
async def test_what_is_no_cursor_is_never_taken_for_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cursor").write_bytes(content)
    with pytest.raises(CursorInvalid):
        await FileCheckpoint(tmp_path / "cursor").load()


async def test_a_write_that_fails_keeps_the_cursor_of_before(tmp_path: Path) -> None:
    store = FileCheckpoint(tmp_path / "cursor")
    await store.save(SAVED)
    (tmp_path / "cursor.new").mkdir()
    with pytest.raises(IsADirectoryError):
        await store.save(Cursor(CATALOG_UUID, 8, 0))
    assert await store.load() == SAVED


async def test_a_folder_that_is_missing_is_told_before_anything_is_received(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        await FileCheckpoint(tmp_path / "none" / "cursor").load()


async def test_a_path_is_no_store_and_is_told_what_to_do() -> None:
    async with tailrace.connect("127.0.0.1:1") as client:
        with pytest.raises(tailrace.InvalidRequest, match=r"FileCheckpoint\(path\)"):
            client.subscribe("shop", checkpoint="cursor")  # type: ignore[arg-type]


async def test_a_store_that_is_not_async_is_told_so() -> None:
    class Plain:
        def load(self) -> Cursor | None:
            return None

        def save(self, cursor: Cursor) -> None:
            pass

    async with tailrace.connect("127.0.0.1:1") as client:
        subscription = client.subscribe("shop", checkpoint=Plain())  # type: ignore[arg-type]
        with pytest.raises(tailrace.InvalidRequest, match="`load` of the store must be an async"):
            await subscription.__aenter__()


async def test_a_subscription_begins_behind_its_saved_cursor_and_saves_on_commit(
    tmp_path: Path,
) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.captures(8, 9)
        await call.heartbeat(12)
        await call.silence()

    store = FileCheckpoint(tmp_path / "cursor")
    await store.save(SAVED)
    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", since=1, checkpoint=store) as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        assert server.calls[0].first.subscribe.after == str(SAVED)
        assert not server.calls[0].first.subscribe.HasField("since_version")
        await anext(captures)
        await captures.commit()
        assert await store.load() == Cursor(CATALOG_UUID, 8, 0, 0)
        messages = captures.messages()
        await anext(messages)
        assert isinstance(await anext(messages), tailrace.Heartbeat)
        await captures.commit()
        assert await store.load() == Cursor(CATALOG_UUID, 12, tailrace.END)


async def test_contract_26_where_it_begins_is_saved_before_anything_came(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.begin(version=5)
        await call.silence()

    store = FileCheckpoint(tmp_path / "cursor")
    async with ScriptedServer(script, script) as server, tailrace.connect(server.target) as client:
        async with client.subscribe("shop", checkpoint=store):
            pass  # nothing came, and it goes
        async with client.subscribe("shop", checkpoint=store):
            assert server.calls[1].first.subscribe.after == str(
                Cursor(CATALOG_UUID, 5, tailrace.END)
            )


async def test_a_start_that_is_given_is_not_moved_to_where_it_was_resolved(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.begin(version=5)
        await call.silence()

    store = FileCheckpoint(tmp_path / "cursor")
    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", since=0, checkpoint=store),
    ):
        assert await store.load() is None


async def test_a_save_after_one_that_was_cancelled_waits_for_it_and_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, overlapped, go_on, fsync = Event(), Event(), Event(), os.fsync

    def slow(descriptor: int) -> None:
        if not go_on.is_set():
            (overlapped if began.is_set() else began).set()
            assert go_on.wait(PATIENCE_S)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    store = FileCheckpoint(tmp_path / "cursor")
    first = asyncio.create_task(store.save(SAVED))
    await asyncio.to_thread(began.wait)
    first.cancel()
    later = Cursor(CATALOG_UUID, 8, 0)
    second = asyncio.create_task(store.save(later))
    assert not await asyncio.to_thread(overlapped.wait, 0.2), "both write the same file"
    go_on.set()
    await second
    assert await store.load() == later
    assert os.listdir(tmp_path) == ["cursor"]


async def test_a_commit_without_a_store_says_so() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop") as captures,
    ):
        with pytest.raises(tailrace.InvalidRequest, match="checkpoint="):
            await captures.commit()


FORMS: dict[str, Callable[[tailrace.Subscription], AsyncIterator[object]]] = {
    "captures": aiter,
    "batches": lambda captures: captures.batches(),
    "messages": lambda captures: captures.messages(),
}


@pytest.mark.parametrize("form", FORMS)
async def test_contract_26_heartbeats_move_what_is_saved_while_nothing_matches(
    tmp_path: Path, form: str
) -> None:
    """Retention would take what lies between, and the next start be compacted. What was not committed stays."""
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await call.heartbeat(5)
        await more.wait()
        await call.captures(8)
        await call.heartbeat(9)
        await call.captures(10)
        await call.silence()

    store = FileCheckpoint(tmp_path / "cursor")

    async def saved(cursor: Cursor) -> None:
        while await store.load() != cursor:  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", since=1, checkpoint=store) as captures,
        asyncio.timeout(PATIENCE_S),
    ):

        async def version(wanted: int) -> None:
            async for found in FORMS[form](captures):
                first = found[0] if type(found) is tuple else found
                if isinstance(first, tailrace.Capture) and first.version == wanted:
                    return

        reading = asyncio.create_task(version(8))
        await saved(Cursor(CATALOG_UUID, 5, tailrace.END))
        more.set()
        await reading
        await version(10)  # past a heartbeat, with what came before it not committed
        assert await store.load() == Cursor(CATALOG_UUID, 5, tailrace.END)
        await captures.commit()
        assert await store.load() == Cursor(CATALOG_UUID, 10, 0, 0)


async def test_heartbeats_before_a_start_by_time_are_not_saved(tmp_path: Path) -> None:
    """A cursor comes before the time: the next start would be earlier than what was asked for."""

    async def script(call: Call) -> None:
        await call.begin()
        await call.heartbeat(5)
        await call.captures(8)
        await call.heartbeat(9)
        await call.silence()

    store = FileCheckpoint(tmp_path / "cursor")
    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", from_time=1, checkpoint=store) as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        messages = captures.messages()
        assert isinstance(await anext(messages), tailrace.Heartbeat)
        await anext(messages)
        assert await store.load() is None
        await captures.commit()
        await anext(messages)
        assert await store.load() == Cursor(CATALOG_UUID, 9, tailrace.END)
