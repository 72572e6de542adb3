"""The program of docs/state.md runs as it is printed; only the port differs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace_server.api.grpc import GrpcServer
from tailrace_server.capture.engine import Engine
from tests.conformance.shop import remove, upsert
from tests.support.polling import until

if TYPE_CHECKING:
    import pytest

    from tests.support.inprocess import ModelWriter

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


async def test_contract_48_a_program_has_the_table_and_follows_it(
    log_root: Path, writer: ModelWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.write([upsert("1"), upsert("2"), upsert("7", "order")])
    program = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0]
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
            await until(lambda: told("version 2 has 3 rows"))
            await until(lambda: told("version 2 has 2 rows"))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(1.0)
