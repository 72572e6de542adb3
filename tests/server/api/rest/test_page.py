"""What docs/rest.md shows works as it stands there."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.shop import SHOP
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

PAGE = Path(__file__).parents[4] / "docs" / "rest.md"
ADDRESS = "127.0.0.1:7412"


def commands() -> list[list[str]]:
    return [shlex.split(line[2:]) for line in re.findall(r"^\$ curl .*$", PAGE.read_text(), re.M)]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[-1][-40:])
async def test_every_curl_of_the_page_is_answered(
    serve: Serve, writer: ModelWriter, command: list[str]
) -> None:
    """Its options are few, so that curl itself need not be there."""
    writer.write(*SHOP)
    served = await serve()
    headers, data = {}, None
    options = iter(command[1:-1])
    for option in options:
        match option:
            case "-H":
                name, _, value = next(options).partition(": ")
                headers[name] = value
            case "-d":
                data = next(options)
            case "-N":
                pass
            case _:
                raise AssertionError(option)
    path = command[-1].removeprefix(f"http://{ADDRESS}")
    method = "GET" if data is None else "POST"
    async with served.http.stream(method, path, headers=headers, content=data) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_bytes():
            if b'"cursor"' in chunk:
                break
        else:
            raise AssertionError("no capture came")


@pytest.mark.slow
async def test_the_program_of_the_page_runs(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    program = program.replace(ADDRESS, f"127.0.0.1:{served.port}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"UPSERT 1 " in out
    assert b"resume after 1." in out
