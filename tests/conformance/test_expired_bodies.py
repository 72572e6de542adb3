"""BODIES_EXPIRED on every transport: with its position, and where bodies are asked for alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Content, Since
from tailrace.errors import BodiesExpired
from tailrace.position import Position
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.expiring import expire
from tests.conformance.reading import collect, coordinates
from tests.conformance.shop import OLDEST, upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.conftest import Serve
    from tests.conformance.ways import Driver
    from tests.support.inprocess import ModelWriter


async def test_contract_38_bodies_that_are_gone_are_told_of_by_position_and_heads_go_on(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    for number in range(6):
        writer.write([upsert(str(number))])
    log = CommitLog.open(log_root / "shop")
    kept = 86_400_000_000
    change_settings(log.store, log.view, {"bodies": kept}, 1, entity_type="product")
    assert expire(log.path, log.view.timestamp_of(3) + kept, at_once=True) is not None
    driver = await serve()
    expected = writer.log.expected(())
    for reverse, wanted in ((False, 1), (True, 3)):
        ordered = expected[::-1] if reverse else expected
        found, error = await pages(driver, reverse=reverse)
        assert found == ordered[: len(found)]
        assert error.wanted.version == wanted
        assert (error.entity_type, error.oldest) == ("product", Position(4, 0))
        page = await driver.read(content=Content.HEADER, reverse=reverse)
        assert coordinates(page.captures) == ordered
    heads = await driver.subscribe(start=OLDEST, content=Content.HEADER)
    assert coordinates(await collect(heads, len(expected))) == expected
    bodies = await driver.subscribe(start=OLDEST, content=Content.BODY)
    with pytest.raises(BodiesExpired) as told:
        await collect(bodies, len(expected))
    assert told.value.wanted.version == 1
    late = await driver.subscribe(start=Since(told.value.oldest), content=Content.BODY)
    expected = writer.log.expected((), 4)
    assert coordinates(await collect(late, len(expected))) == expected


async def pages(
    driver: Driver, *, reverse: bool
) -> tuple[list[tuple[int, int, int]], BodiesExpired]:
    """Return what pages of history give until one is refused, and the error: a page ends before it."""
    found: list[tuple[int, int, int]] = []
    bounds: dict[str, Any] = {}
    while True:
        try:
            page = await driver.read(content=Content.BODY, reverse=reverse, **bounds)
        except BodiesExpired as error:
            return found, error
        found += coordinates(page.captures)
        bounds = {"anchor": page.anchor, "before" if reverse else "after": page.next_cursor}
        assert page.next_cursor is not None
