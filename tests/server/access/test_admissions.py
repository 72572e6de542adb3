"""What the engine tells of subscriptions and reads is in the audit, and nothing is given unrecorded."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from tailrace.criteria import After, Content, Criteria, Operation, Since
from tailrace.cursor import Cursor
from tailrace.errors import CatalogUnknown, InvalidRequest, NotPermitted, QuotaExceeded, ServerFull
from tailrace.position import Position
from tailrace_server.access.admissions import RecordedAdmissions, _words
from tailrace_server.access.audit import Audit
from tailrace_server.access.door import Identified
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.settings import AuditSettings, QuotaSettings
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tailrace_server.reads.history import HistoryRead
from tests.server.access.test_audit import ANNA, OneToken
from tests.support.inprocess import ModelWriter, receive
from tests.support.model import ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

PEER = Peer("grpc", "10.0.0.1:5000", "grpc-python")
OLDEST = Since(Position(0))


def write(writer: ModelWriter, *keys: str) -> None:
    writer.write(
        [ModelMutation("product", key, Operation.UPSERT, None, {"id": key}) for key in keys]
    )


def lines_of(path: Path, *events: str) -> list[dict[str, Any]]:
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    return [each for each in lines if each["event"] in events]


async def test_a_subscription_is_recorded_when_it_begins_and_with_what_it_was_given(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    write(writer, "1", "2")
    with closing(Audit(AuditSettings(audit=path))) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            criteria = [Criteria(entity_type=("product",), primary_key=("1", "2"))]
            subscription = await engine.subscribe(
                *(ANONYMOUS, "shop", criteria),
                start=OLDEST,
                content=Content.AFTER,
                codec=JSON,
                peer=PEER,
            )
            found = await receive(subscription, 2)
            cursor = str(subscription.resume_cursor())
            subscription.cancel()
            subscription.cancel()
    [begun], [ended] = lines_of(path, "subscribed"), lines_of(path, "ended")
    who = ("principal", "kind", "address", "transport", "catalog", "id")
    id = subscription.acknowledgement.subscription_id
    for each in begun, ended:
        assert [each[name] for name in who] == [
            *("anonymous", "anonymous", "10.0.0.1", "grpc", "shop", id)
        ]
    assert begun["asked"] == ["product, key 1 or 2"]
    assert begun["effective"] == begun["asked"]
    assert (begun["content"], begun["start"]) == ("AFTER", "1:0")
    assert (ended["code"], ended["captures"], ended["cursor"]) == ("SUBSCRIPTION_CLOSED", 2, cursor)
    assert ended["bytes"] == subscription.statistics().delivered_bytes > 0
    assert len(found) == 2


async def test_reads_of_history_are_recorded_and_how_they_ended(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    write(writer, "1", "2", "3")
    with closing(Audit(AuditSettings(audit=path))) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            read = await engine.history(ANONYMOUS, "shop", codec=JSON, peer=PEER)
            with read:
                captures = [each.count async for each in read]
            broken = InvalidRequest("it breaks off")
            unread = await engine.history(ANONYMOUS, "shop", codec=JSON, peer=PEER)
            with pytest.raises(InvalidRequest), unread:
                raise broken
    begun, ended = lines_of(path, "history_begun"), lines_of(path, "history_ended")
    assert [each["id"] for each in begun] == [each["id"] for each in ended]
    assert [each["captures"] for each in ended] == [sum(captures), 0] == [4, 0]
    assert [each["code"] for each in ended] == ["", "INVALID_REQUEST"]
    assert [bool(each["cursor"]) for each in ended] == [True, False]


async def test_what_is_refused_is_recorded(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    write(writer, "1")
    with closing(Audit(AuditSettings(audit=path))) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            with pytest.raises(CatalogUnknown):
                await engine.subscribe(ANONYMOUS, "shoq", codec=JSON, peer=PEER)
            with pytest.raises(InvalidRequest):
                await engine.history(ANONYMOUS, "shop", codec=JSON, limit=0, peer=PEER)
    refused = lines_of(path, "refused")
    assert [(each["catalog"], each["code"]) for each in refused] == [
        ("shoq", "CATALOG_UNKNOWN"),
        ("shop", "INVALID_REQUEST"),
    ]
    assert lines_of(path, "subscribed", "ended", "history_begun", "history_ended") == []


async def test_an_operators_action_is_recorded_with_its_reason(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    write(writer, "1")
    with closing(Audit(AuditSettings(audit=path))) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            id = subscription.acknowledgement.subscription_id
            engine.end_subscription(ANONYMOUS, id, "too slow", PEER)
            one = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            with pytest.raises(NotPermitted):
                engine.end_subscription(
                    Identified(ANNA, OneToken()), one.acknowledgement.subscription_id, "out", PEER
                )
    [ended, _], [action] = lines_of(path, "ended"), lines_of(path, "operator_action")
    [refused] = lines_of(path, "refused")
    assert (ended["id"], ended["code"]) == (id, "ENDED_BY_OPERATOR")
    assert [action[name] for name in ("action", "subject", "reason", "catalog", "address")] == [
        *("end_subscription", id, "too slow", "shop", "10.0.0.1")
    ]
    assert (refused["principal"], refused["code"]) == ("anna", "NOT_PERMITTED")


async def test_a_server_that_stops_records_the_end_of_each_subscription(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    write(writer, "1")
    with closing(Audit(AuditSettings(audit=path))) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            for _ in range(3):
                await engine.subscribe(ANONYMOUS, "shop", codec=JSON, peer=PEER)
    assert [each["code"] for each in lines_of(path, "ended")] == ["SERVER_STOPPING"] * 3
    assert lines_of(path, "ended")[0]["cursor"]


@pytest.mark.parametrize("required", [False, True])
async def test_while_a_required_audit_stands_still_nothing_new_is_given(
    log_root: Path, writer: ModelWriter, tmp_path: Path, required: bool
) -> None:
    path = tmp_path / "audit"
    path.symlink_to("/dev/full")
    write(writer, "1")
    settings = AuditSettings(audit=path, audit_required=required)
    with structlog.testing.capture_logs(), closing(Audit(settings)) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            await until(lambda: audit.faults() != ())
            assert [each.kind for each in engine.statistics(ANONYMOUS).faults] == [
                "audit_not_written"
            ]
            if required:
                with pytest.raises(ServerFull):
                    await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
                with pytest.raises(ServerFull):
                    await engine.history(ANONYMOUS, "shop", codec=JSON)
                assert engine.subscriptions(ANONYMOUS) == []
                assert engine.criteria.bytes == 0
            path.unlink()
            if required:
                await until(lambda: audit.faults() == ())
            subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
            await receive(subscription, 2)
            subscription.cancel()


async def test_a_subscription_that_does_not_fit_into_a_required_audit_is_not_opened(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    write(writer, "1")
    settings = AuditSettings(audit=tmp_path / "audit", audit_required=True, audit_queue_bytes=700)
    with closing(Audit(settings)) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit)) as engine:
            with pytest.raises(ServerFull, match="its queue is full"):
                await engine.subscribe(
                    ANONYMOUS, "shop", [Criteria(primary_key=("x" * 900,))], codec=JSON
                )
            assert not engine.publishers(ANONYMOUS)
            assert engine.criteria.bytes == 0


async def test_history_that_outruns_its_quota_waits_and_the_next_read_is_told_when_to_come(
    log_root: Path, writer: ModelWriter
) -> None:
    """A byte a second: what the first message owes is not paid while the test runs."""
    write(writer, "1")
    write(writer, "2")
    quotas = Quotas(QuotaSettings(quota_history_bytes=1, quota_history_reads=2))
    admissions = RecordedAdmissions(Audit(), quotas)
    async with Engine(log_root, admissions=admissions) as engine:
        read = await engine.history(ANONYMOUS, "shop", codec=JSON, peer=PEER)
        messages = aiter(read)
        with read:
            assert (await anext(messages)).count
            with pytest.raises(QuotaExceeded, match="history_bytes"):
                await engine.history(ANONYMOUS, "shop", codec=JSON, peer=PEER)
            waiting = asyncio.ensure_future(anext(messages))
            await until(lambda: read._waiter is not None)
            read.end(InvalidRequest("enough"))
            with pytest.raises(InvalidRequest, match="enough"):
                await waiting
        assert not any(quotas.used.values())


async def test_what_a_subscription_has_of_quotas_is_given_back_on_every_way_to_its_end(
    log_root: Path, writer: ModelWriter
) -> None:
    write(writer, "1")
    quotas = Quotas(QuotaSettings(quota_subscriptions=1, quota_keys=2, quota_history_reads=1))
    admissions = RecordedAdmissions(Audit(), quotas)
    keys = [Criteria(primary_key=("1", "2"))]
    async with Engine(log_root, admissions=admissions) as engine:
        # 1. It leaves, it is ended by an error, and it never came to be.
        for end in ("cancel", "stop"):
            one = await engine.subscribe(ANONYMOUS, "shop", keys, codec=JSON, peer=PEER)
            assert quotas.used == {("subscriptions", "anonymous"): 1, ("keys", "anonymous"): 2}
            getattr(one, end)()
            assert not any(quotas.used.values())
        ahead = After(Cursor.parse(str(one.resume_cursor())))
        with pytest.raises(InvalidRequest):
            await engine.subscribe(ANONYMOUS, "shop", keys, start=ahead, codec=JSON, demand=-1)
        assert not any(quotas.used.values())
        # 2. So do reads: to the end, left in between, refused, and cancelled as they begin.
        read = await engine.history(ANONYMOUS, "shop", codec=JSON, peer=PEER)
        assert quotas.used["history_reads", "anonymous"] == 1
        read.close()
        with pytest.raises(InvalidRequest):
            await engine.history(ANONYMOUS, "shop", codec=JSON, limit=0, peer=PEER)
        beginning = asyncio.ensure_future(engine.history(ANONYMOUS, "shop", codec=JSON, peer=PEER))
        await asyncio.sleep(0)
        beginning.cancel()
        found = await asyncio.gather(beginning, return_exceptions=True)
        if isinstance(found[0], HistoryRead):
            found[0].close()
        assert not any(quotas.used.values())
        # 3. What is left when the engine ends.
        await engine.subscribe(ANONYMOUS, "shop", keys, codec=JSON, peer=PEER)
    assert not any(quotas.used.values())


def test_of_a_long_list_it_is_told_that_there_is_more() -> None:
    """What is behind the hundredth would else be asked for without a record."""
    keys = tuple(f"{number:03}" for number in range(150))
    assert _words(()) == _words((Criteria(),)) == ["everything"]
    [one] = _words((Criteria(primary_key=keys),))
    assert one.startswith("key 000 or 001 or ")
    assert one.endswith("099 or 50 more")
    many = _words(tuple(Criteria(entity_type=(key,)) for key in keys))
    assert (many[0], many[99], many[100:]) == ("000", "099", ["50 more"])
    assert _words((Criteria(primary_key=("x" * 500,)),)) == [f"key {'x' * 500}"]
