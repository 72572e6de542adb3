"""The README's quickstart and its clients, as they stand there, step by step; only the ports differ."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import grpc.aio
import httpx
import pytest
from google.protobuf import json_format

from tailrace.v1 import change_capture_pb2 as wire
from tests.process.commands import PATIENCE_S, Command, ServerProcess, environment, outcome
from tests.support.programs import Program, found

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def blocks(section: str, language: str) -> list[str]:
    """Return the code blocks of a section of the README in one language."""
    text = (ROOT / "README.md").read_text()
    text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


async def run(*arguments: str) -> None:
    """Run one of the quickstart's programs, which must succeed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments), env=environment(), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def test_the_quickstart_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = map(shlex.split, blocks("Quickstart", "sh"))
    play, feed, ingest, serve, watch, state, dear, sql = steps
    assert play == ["tailrace", "play"]  # test_play.py
    curl, grpcurl = (shlex.split(block) for block in blocks("Clients", "sh"))
    assert feed[:2] == ["python", "-m"]
    await run(*feed[1:], "--transactions", "50")
    assert ingest[0] == "tailrace"
    await run("-m", "tailrace_server", *ingest[1:])
    options = dict(zip(serve[2::2], serve[3::2], strict=True))
    server = ServerProcess(Path(options["--log"]))
    async with server.up():
        where = watch.index(options["--grpc"])
        watch[where] = server.grpc
        async with Command(*watch[1:]) as shown:
            first = (await shown.line()).decode()
            assert first.split()[0] == "1:1"
            assert "schema" in first
            assert "entity type added" in first
            while "insert" not in (await shown.line()).decode():
                pass
        state[state.index(options["--grpc"])] = server.grpc
        status, table, notes = await outcome(*state[1:])
        assert status == 0, notes
        assert table.splitlines()[0].split()[:2] == ["id", "sku"]
        dear[dear.index(options["--grpc"])] = server.grpc
        async with Command(*dear[1:]) as shown:
            while "enters" not in (await shown.line()).decode():
                pass
        sql[sql.index(options["--grpc"])] = server.grpc
        status, counts, notes = await outcome(*sql[1:])
        assert status == 0, notes
        assert "insert" in counts
        [program] = blocks("Clients", "python")
        assert options["--grpc"] in program
        await _prints(program.replace(options["--grpc"], server.grpc), b"1:0 TRANSACTION None b'{")
        [script] = blocks("Clients", "js")
        assert options["--http"] in script
        await _follows(script.replace(options["--http"], server.http))
        assert options["--http"] in curl[-1]
        await _streams(curl[-1].replace(options["--http"], server.http), curl[curl.index("-H") + 1])
        assert grpcurl[-2] == options["--grpc"]
        await _calls(server.grpc, grpcurl[-1], grpcurl[grpcurl.index("-d") + 1])


async def _follows(script: str) -> None:
    """Run the JavaScript client, with the packages of the examples for Node."""
    run = ("--experimental-websocket", "--input-type=module", "--eval", script)
    async with Program(found("node"), *run, folder=ROOT / "examples" / "node") as node:
        (first,) = (await node.printed(1))[:1]
    change = json.loads(first)
    assert change["operation"] == "UPSERT"
    assert set(change["after"]) == {"id", "price"}


async def _calls(server: str, method: str, request: str) -> None:
    """Call what grpcurl would call, with the request as JSON."""
    message = json_format.Parse(request, wire.SubscribeRequest())
    async with asyncio.timeout(PATIENCE_S), grpc.aio.insecure_channel(server) as channel:
        stream = channel.unary_stream(
            f"/{method}",
            request_serializer=wire.SubscribeRequest.SerializeToString,
            response_deserializer=wire.SubscribeResponse.FromString,
        )
        async for response in stream(message):
            if any(each.HasField("after") for each in response.captures):
                break


async def _streams(url: str, header: str) -> None:
    """Read the event stream that curl would print, as far as the first insert."""
    name, _, value = header.partition(": ")
    client = httpx.AsyncClient(trust_env=False)
    async with (
        asyncio.timeout(PATIENCE_S),
        client,
        client.stream("GET", url, headers={name: value}) as events,
    ):
        lines = events.aiter_lines()
        while '"operation":"UPSERT"' not in (line := await anext(lines)) or "before" in line:
            pass
    assert '"after":{"' in line


async def _prints(program: str, beginning: bytes) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-c", program),
        stdout=asyncio.subprocess.PIPE,
        env={**environment(), "PYTHONUNBUFFERED": "1"},
        limit=1 << 24,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert (await process.stdout.readline()).startswith(beginning)
    finally:
        process.kill()
        await process.wait()
