"""``tailrace serve`` as a process: how it starts, how it stops, and what it says when it cannot."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import tailrace
from tailrace.v1.capture_pb2 import Body
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace.v1.change_capture_pb2_grpc import ChangeCaptureStub
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import INTERRUPT, TERMINATE, ServerProcess, outcome
from tests.support.inprocess import know
from tests.support.polling import until_answered

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


def write(root: Path, transactions: int, *, size: int = 10) -> None:
    """Publish transactions of one row each."""
    if not (root / "shop").exists():
        know(root, "shop", {"product": ("id", "text")})
    with LogWriter.open(root, "shop") as writer:
        for number in range(transactions):
            image = b'{"id":%d,"text":"%s"}' % (number, b"x" * size)
            writer.append([Mutation("product", str(number), after=image)])


@pytest.mark.parametrize("signal", [INTERRUPT, TERMINATE], ids=["ctrl-c", "sigterm"])
async def test_it_says_where_it_listens_and_stops_in_good_order(
    log_root: Path, signal: int
) -> None:
    server = ServerProcess(log_root)
    async with server.up() as command:
        assert not server.grpc.endswith(":0")
        health = await server.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "serving")
        command.send(signal)
        assert await command.end() == 0
        await command.note('"event": "stopped"')


async def test_metrics_are_the_statistics_in_openmetrics(log_root: Path) -> None:
    write(log_root, 3)
    server = ServerProcess(log_root)
    async with server.up():
        async with (
            tailrace.connect(server.grpc) as client,
            client.subscribe("shop", since=0) as captures,
        ):
            for _ in range(6):
                await anext(captures)
            [open_one] = (await server.get("/subscriptions")).json()
            assert (open_one["mode"], open_one["delivered"]) == ("live", 6)
            [wanted] = (await server.get("/publishers")).json()
            assert (wanted["catalog"], wanted["criteria"], wanted["subscriptions"]) == (
                "shop",
                [{}],
                1,
            )
            assert wanted["ring_evicted"] == 0
            answer = await server.get("/metrics", "application/openmetrics-text")
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.labels.get("catalog", "shop") == "shop"
        }
        assert samples["tailrace_captures_delivered_total"] == 6
        assert samples["tailrace_published_version"] == 3
        assert samples["tailrace_process_anonymous_bytes"] > 1 << 20


async def test_the_log_has_the_statistics_of_metrics_where_anything_moved(log_root: Path) -> None:
    write(log_root, 3)
    server = ServerProcess(log_root, ("--log-statistics-s", "20ms"))
    async with server.up() as command:
        async with (
            tailrace.connect(server.grpc) as client,
            client.subscribe("shop", since=0) as captures,
        ):
            for _ in range(6):
                await anext(captures)
            await command.note('"event": "statistics"', '"captures_delivered": 6')
        line = await command.note('"captures_delivered": 6', '"subscriptions": 0')
        command.send(TERMINATE)
        assert await command.end() == 0
    engine = json.loads(line)
    assert (engine["event"], engine["subscriptions_opened"]) == ("statistics", 1)
    assert engine["process_bytes"] > 1 << 20


async def test_contract_26_a_stop_hands_each_subscriber_its_resume_cursor(log_root: Path) -> None:
    """The cursor that comes with the end is exact: after it, what was not seen yet and nothing else."""
    write(log_root, 3)
    server = ServerProcess(log_root)
    never = tailrace.Retry(attempts_max=0)
    async with server.up() as command:
        async with (
            tailrace.connect(server.grpc, retry=never) as client,
            client.subscribe("shop", since=0) as captures,
        ):
            for _ in range(6):
                await anext(captures)
            command.send(TERMINATE)
            with pytest.raises(tailrace.ServerStopping) as stopped:
                await anext(captures)
        assert await command.end() == 0
    cursor = stopped.value.resume_cursor
    assert cursor is not None
    write(log_root, 1)
    async with (
        server.up(),
        tailrace.connect(server.grpc) as client,
        client.subscribe("shop", after=cursor) as captures,
    ):
        assert [(await anext(captures)).position for _ in range(2)] == [(4, 0), (4, 1)]


async def test_while_it_drains_it_takes_nobody_and_a_second_signal_ends_it_at_once(
    log_root: Path,
) -> None:
    """A subscriber that reads nothing holds up the stop; whoever asks twice does not want to wait."""
    write(log_root, 64, size=1 << 20)
    server = ServerProcess(log_root, ("--stop-deadline-s", "10m"))
    async with server.up() as command, grpc.aio.insecure_channel(server.grpc) as channel:
        request = SubscribeRequest(catalog="shop", since_version=0, body=[Body.BODY_AFTER])
        stalled = ChangeCaptureStub(channel).Subscribe(request)
        await stalled.read()
        await _blocked(server)
        command.send(TERMINATE)
        await command.note('"event": "stopping"')
        health = await server.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "stopping")
        command.send(TERMINATE)
        assert await command.end() == 128 + TERMINATE
        stalled.cancel()


_SAME = 30
"""Answers in a row, each asked for a little later, that show that nothing moves."""


async def _blocked(server: ServerProcess) -> None:
    """Wait until the transport takes nothing more."""
    delivered = [-1]

    async def same_as_before() -> bool:
        [found] = (await server.get("/subscriptions")).json()
        delivered.append(found["delivered"])
        return len(set(delivered[-_SAME:])) == 1

    await until_answered(same_as_before)


def _one_line(text: str) -> str:
    assert text.count("\n") == 0, text
    assert text.startswith("error: ")
    return text


async def test_a_port_in_use_is_one_clear_line_and_status_2(log_root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag, other in (("--grpc", "--http"), ("--http", "--grpc")):
            status, _, error = await outcome(
                *("serve", "--log", log_root, flag, address, other, "127.0.0.1:0")
            )
            assert status == 2
            assert _one_line(error) == f"error: {flag} {address}: address already in use"


async def test_a_folder_that_cannot_be_served_is_one_clear_line_and_status_2(
    log_root: Path,
) -> None:
    (log_root / "notes.txt").touch()
    for folder, reason in (
        (log_root / "missing", "no such folder"),
        (log_root, "not a log root"),
        (log_root / "notes.txt", "a file"),
    ):
        status, _, error = await outcome("serve", "--log", folder, "--grpc", "127.0.0.1:0")
        assert status == 2
        assert reason in _one_line(error)


async def test_wrong_settings_are_one_clear_line_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.toml"
    file.write_text("ring_capture = 1\n")
    for arguments, reason in (
        ((), "no log root: give --log ROOT"),
        (("--memory", "plenty"), "--memory: 'plenty' is not valid"),
        (("--config", file), "no setting 'ring_capture'; did you mean ring_captures?"),
        (("--port", "1"), "No such option: --port"),
    ):
        status, _, error = await outcome("serve", *arguments)
        assert status == 2
        assert reason in _one_line(error)


async def test_print_config_shows_what_is_in_effect_and_starts_nothing(tmp_path: Path) -> None:
    status, text, _ = await outcome("serve", "--memory", "512MiB", "--print-config")
    assert status == 0
    assert 'memory = "512MiB"' in text


@pytest.mark.parametrize("closed", [0, 1, 2])
async def test_a_command_runs_with_a_standard_stream_closed(tmp_path: Path, closed: int) -> None:
    without = (
        f"import os, sys; os.close({closed}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'tailrace_server', *sys.argv[1:]])"
    )
    status, text, error = await outcome("serve", "--print-config", python=("-c", without))
    assert (status, error) == (0, "")
    assert bool(text) is (closed != 1)
    missing = tmp_path / "missing"
    status, _, error = await outcome("log", "inspect", missing, python=("-c", without))
    assert status == 2
    assert (f"there is no folder {missing}" in error) is (closed != 2)
