"""The README's quickstart, as it stands there, step by step; only its ports are others."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

import httpx
import pytest

from tests.process.commands import PATIENCE_S, Command, ServerProcess, environment

pytestmark = pytest.mark.slow

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """Return the code blocks of the quickstart in one language."""
    text = README.read_text().partition("\n## Quickstart\n")[2].partition("\n## ")[0]
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


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
    feed, ingest, serve, watch, curl = (shlex.split(block) for block in blocks("sh"))
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
        assert options["--http"] in curl[-1]
        await _streams(curl[-1].replace(options["--http"], server.http), curl[curl.index("-H") + 1])
        [program] = blocks("python")
        assert options["--grpc"] in program
        await _prints(program.replace(options["--grpc"], server.grpc), b"1:0 TRANSACTION None b'{")


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
