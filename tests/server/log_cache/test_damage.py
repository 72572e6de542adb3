"""Damage of every kind is a fault with catalog and place, from the read that meets it to its repair."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import LogCorrupted
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tailrace_server.named import loss_watch
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.resources import faults
from tailrace_server.wal.files.sequence_documents import ViewDocument
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.definitions import change_definitions
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tests.server.wal.logs import upsert, write_files
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(root: Path) -> Path:
    """Write three commits, and one document of each kind that is beside the records; return the folder."""
    with LogWriter.open(root, "shop") as writer:
        for number in range(3):
            writer.append([upsert(f"{number}-{key}", entity_type="product") for key in range(4)])
            writer.commit(publish=True)
    log = CommitLog.open(root / "shop")
    change_settings(log.store, log.view, {"max_lookback": 1 << 50}, 5)
    view = ViewDocument("cheap", "product", 1, [], "", 5)
    change_definitions(log.store, log.uuid, lambda known: known.with_view(view), 5)
    options: dict[str, Any] = {"hold_us": 1, "hold_bytes": 1, "now": 0, "owner": ""}
    held = new_subscription(log.view, "billing", (), "1", cap=HoldCap(), **options)
    SubscriptionSequences(log.path, log.uuid).create(held)
    return log.path


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


async def read_all(engine: Engine) -> None:
    """Read a table's rows; fails where a batch cannot be read."""
    asked = StateRequest(entity_type="product")
    peer = Peer("grpc", "10.0.0.1:5000", "grpc-python")
    with await engine.state(ANONYMOUS, "shop", asked, codec=JSON, peer=peer) as read:
        async for _ in read:
            pass


def places_in(engine: Engine) -> dict[str, int]:
    """Return the damaged places of each catalog, as in the metric."""
    return {each.catalog: each.damaged_places for each in engine.statistics(ANONYMOUS).observers}


RECORDS: dict[str, Callable[[bytes, int, int], bytes | None]] = {
    "head": lambda data, head, body: flipped(data, head + 40),
    "body": lambda data, head, body: flipped(data, body + 8),
    "cut": lambda data, head, body: data[: body + 1],
    "missing": lambda data, head, body: None,
}


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("kind", RECORDS)
async def test_records_that_cannot_be_read_are_a_fault_until_they_can(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, carried: bool
) -> None:
    if not carried:
        write_files(monkeypatch)
    elif kind in ("cut", "missing"):
        return  # then the entry itself is damaged: log_unreadable
    monkeypatch.setattr(faults, "_EVERY_S", 0.02)
    path = write(log_root)
    ref = CommitLog.open(path).view.batch(1)
    file = path / ref.segment.path
    whole = file.read_bytes()
    async with Engine(log_root) as engine:
        assert places_in(engine)["shop"] == 0
        damaged = RECORDS[kind](
            whole, ref.offset, ref.offset + ref.head_length + sum(ref.body_lengths[:2])
        )
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(LogCorrupted) as refused:
            await read_all(engine)
        error = refused.value
        assert (error.path, error.first, error.last) == (ref.segment.path, ref.first, ref.last)
        assert error.next == Position(ref.last.version, ref.last.index + 1)
        assert error.figures()["next"] == str(error.next)
        [fault] = engine.faults(ANONYMOUS)
        assert (fault.kind, fault.subject) == ("log_damaged", "shop")
        assert f"{ref.segment.path} at byte {error.offset}" in fault.reason
        assert places_in(engine)["shop"] == 1
        file.unlink(missing_ok=True)
        file.write_bytes(whole)
        await until(lambda: engine.faults(ANONYMOUS) == ())
        assert places_in(engine)["shop"] == 0
        await read_all(engine)


@pytest.mark.parametrize("folder", ["settings", "definitions", "subscriptions"])
async def test_documents_that_cannot_be_read_are_a_fault_until_they_can(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The server looks at them by itself, also where nobody requests them."""
    monkeypatch.setattr(faults, "_EVERY_S", 0.02)
    monkeypatch.setattr(loss_watch, "_EVERY_S", 0.02)
    path = write(log_root)
    (file,) = [each for each in (path / folder).rglob("*") if each.is_file()]
    whole = file.read_bytes()
    file.write_bytes(flipped(whole, 5))
    async with Engine(log_root) as engine:
        await until(lambda: engine.faults(ANONYMOUS) != ())
        [fault] = engine.faults(ANONYMOUS)
        assert (fault.kind, fault.subject) == ("log_damaged", "shop")
        assert str(file.relative_to(path)) in fault.reason
        file.write_bytes(whole)
        await until(lambda: engine.faults(ANONYMOUS) == ())


async def test_damage_that_nothing_names_any_more_is_no_fault(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays for its grace, and nobody reads it."""
    write_files(monkeypatch)
    monkeypatch.setattr(faults, "_EVERY_S", 0.02)
    path = write(log_root)
    file = path / CommitLog.open(path).view.batch(1).segment.path
    whole = file.read_bytes()
    async with Engine(log_root) as engine:
        file.write_bytes(bytes(len(whole)))
        with suppress(LogCorrupted):
            await read_all(engine)
        assert len(engine.faults(ANONYMOUS)) == 1
        file.write_bytes(whole)
        compact(path, 5)
        file.write_bytes(bytes(len(whole)))
        await until(lambda: engine.faults(ANONYMOUS) == ())
