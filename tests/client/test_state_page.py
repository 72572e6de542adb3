"""The programs of docs/state.md run as they are printed; only the port differs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import Operation
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tests.conformance.shop import remove, upsert
from tests.support.model import ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from tests.support.inprocess import ModelWriter

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


@pytest.mark.parametrize(
    ("place", "seen"),
    [(0, ["version 2 has 2 rows"]), (1, ["version 2 has 3 rows", "version 2 has 2 rows"])],
    ids=["a live table", "two calls"],
)
async def test_contract_48_a_program_has_the_table_and_follows_it(
    place: int,
    seen: list[str],
    log_root: Path,
    writer: ModelWriter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer.write([upsert("1"), upsert("2"), upsert("7", "order")])
    program = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[place]
    lines: list[str] = []

    def told(line: str) -> bool:
        lines.extend(capsys.readouterr().out.splitlines())
        return line in lines

    async with Engine(log_root) as engine:
        server = GrpcServer(engine)
        port = await server.start("127.0.0.1:0")
        names: dict[str, Any] = {}
        exec(
            program.replace("127.0.0.1:7411", f"127.0.0.1:{port}").replace(
                "asyncio.run(main())\n", ""
            ),
            names,
        )
        running = asyncio.ensure_future(names["main"]())
        try:
            await until(lambda: told("2 rows as of version 1"))
            writer.write([upsert("3"), remove("1")])
            for line in seen:
                await until(lambda: told(line))  # noqa: B023 - awaited here
            writer.write([ModelMutation("product", None, Operation.REMOVE, None, None)])
            await until(lambda: told("version 3 has 0 rows"))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(1.0)
