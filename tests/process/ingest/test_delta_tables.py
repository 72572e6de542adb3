"""``tailrace ingest delta`` as a process: each version of the table is one of the catalog, through kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EntityTypeUnknown
from tailrace_server.wal.upkeep.verify import verify
from tests.process.commands import INTERRUPT, KILL, Command, outcome
from tests.server.pipeline.tables.lake import Lake
from tests.support import failpoints
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    found = Lake(tmp_path)
    found.append((1, "a"), (2, "b"), (3, "c"))
    yield found
    verify(found.log / "shop")


def options(lake: Lake, *more: object) -> tuple[object, ...]:
    named = ("--table", lake.table, "--entity-type", "order", "--key", "id")
    return ("ingest", "delta", *named, "--log", lake.log, "--catalog", "shop", *more)


async def test_each_version_with_rows_is_a_version_through_kills(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law: the catalog shows, one after the other, the versions of the table that differ."""
    shown = [lake.rows()]
    for place in ("pipeline.before_commit", "pipeline.after_commit"):
        with monkeypatch.context() as armed:
            for name, value in failpoints.environment(f"{place}=kill").items():
                armed.setenv(name, value)
            assert (await outcome(*options(lake)))[0] == -KILL
        assert (await outcome(*options(lake)))[0] == 0
        assert lake.state() == lake.rows()
        for _ in range(12):
            lake.change()
            shown.append(lake.rows())
    assert (await outcome(*options(lake)))[0] == 0
    assert different([lake.state(version) for version in lake.versions()]) == different(shown)


def different(tables: Sequence[list[tuple[int, str]]]) -> list[list[tuple[int, str]]]:
    """Return the tables that differ from the one before."""
    return [now for at, now in enumerate(tables) if not at or now != tables[at - 1]]


async def test_a_table_is_followed(lake: Lake) -> None:
    def is_shown() -> bool:
        try:
            return lake.state() == lake.rows()
        except EntityTypeUnknown:
            return False

    async with Command(*options(lake, "--follow", "--every", "0.05")) as command:
        await until(lambda: lake.log.joinpath("shop").exists() and is_shown())
        lake.append((9, "z"))
        await until(is_shown)
        command.send(INTERRUPT)
        assert await command.end() == 130
    assert "2 versions of 4 rows" in command.notes[-1]
