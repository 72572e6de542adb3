"""What the transports have in common with each other: contract 43.

The rest of the suite holds each of them against the log; here they are held against one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import After, Content
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.conftest import HEARTBEAT_S
from tests.conformance.drivers import serving
from tests.conformance.reading import collect
from tests.conformance.shop import COLUMNS, OLDEST, SHOP

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter


async def test_contract_43_captures_are_the_same_and_a_cursor_of_one_resumes_on_another(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """All members of a capture, bodies byte for byte; each transport against the engine itself, both ways."""
    writer.write(*SHOP)
    count = len(writer.log.expected((COLUMNS,)))
    half = count // 2
    settings = EngineSettings(heartbeat_interval_s=HEARTBEAT_S)
    driver = await serve()
    async with serving(log_root, "in-process", settings) as engine:
        whole = await engine.subscribe((COLUMNS,), start=OLDEST, content=Content.BODY)
        captures = await collect(whole, count)
        begun = await driver.subscribe((COLUMNS,), start=OLDEST, content=Content.BODY)
        assert await collect(begun, count) == captures
        for place in (0, half):
            start = After(captures[place].cursor)
            resumed = await driver.subscribe((COLUMNS,), start=start, content=Content.BODY)
            theirs = await collect(resumed, count - place - 1)
            assert theirs == captures[place + 1 :]
        back = await engine.subscribe((COLUMNS,), start=After(theirs[0].cursor))
        expected = [each.cursor for each in captures[half + 2 :]]
        assert [each.cursor for each in await collect(back, len(expected))] == expected
