"""A checkpoint that lacks a part, or has a damaged one, is refused by name; ``--take-over`` loses nothing."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogUnreadable
from tailrace_server.pipeline.transactions.ingest import checkpoint_folder
from tests.process.ingest.reading import leads, published
from tests.server.pipeline.shapes import end, envelope, line, postgres
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.process.ingest.conftest import Source

pytestmark = pytest.mark.slow

BATCHES = 13
"""So many that Spark has made a compact list of files."""


def transaction(number: int) -> tuple[bytes, bytes]:
    """Return the lines of a transaction of one row."""
    place = postgres(number, number, "product")
    return line(envelope("c", place, after={"id": number})), line(end(str(number), 1))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def lose(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


DAMAGES: tuple[tuple[str, Callable[[Path], None], str], ...] = (
    ("metadata", lose, "metadata is missing"),
    ("metadata", cut, "metadata is damaged"),
    ("offsets", lose, "offsets lacks its newest files"),
    ("offsets/12", lose, "offsets lacks its newest files"),
    ("offsets/11", lose, "offsets/11 is missing"),
    ("offsets/12", cut, "offsets/12 is damaged"),
    ("offsets/11", flip, "offsets/11 is damaged"),
    ("sources", lose, "sources/0/0 is missing"),
    ("sources/0/9.compact", lose, "sources/0/9 is missing"),
    ("sources/0/9.compact", flip, r"sources/0/9\.compact is damaged"),
    ("sources/0/10", lose, "sources/0/10 is missing"),
    ("sources/0/12", lose, "sources/0/12 is missing"),
    ("sources/0/11", cut, "sources/0/11 is damaged"),
    ("commits/12", flip, "commits/12 is damaged"),
)


def test_every_damaged_checkpoint_is_named_and_a_take_over_loses_and_doubles_nothing(
    source: Source,
) -> None:
    for number in range(BATCHES):
        source.add(*transaction(number))
    source.ingest(batch_bytes=1)
    assert published(source.catalog) == BATCHES
    folder, log = checkpoint_folder(source.settings), source.catalog.parent
    whole = log.with_name("whole")
    shutil.copytree(log, whole)

    def again() -> None:
        shutil.rmtree(log)
        shutil.copytree(whole, log)

    # 1. Without its commits Spark runs the last batch again, which the log knows.
    for part in ("commits", "commits/12"):
        again()
        lose(folder / part)
        assert source.ingest().counters.rows == 0
    # 2. What Spark could not start from.
    source.add(*transaction(BATCHES))
    for part, damage, message in DAMAGES:
        again()
        damage(folder / part)
        with pytest.raises(LogUnreadable, match=f"{message}.*--take-over"):
            source.ingest()
        assert source.ingest(take_over=True).counters.rows == 1, part
        found = sorted(int(body["transaction_id"]) for body in leads(source.catalog))
        assert found == [*range(BATCHES + 1)], part
        assert source.ingest().counters.lines == 0


@pytest.mark.parametrize(
    "part",
    [
        "offsets",
        *(
            pytest.param(
                part,
                marks=pytest.mark.nightly(
                    "tests/process/ingest/test_damaged_checkpoint.py: the ingest ends when another part goes"
                ),
            )
            for part in ("metadata", "")
        ),
    ],
)
def test_an_ingest_ends_when_its_checkpoint_goes(source: Source, part: str) -> None:
    source.add(*transaction(1))
    ended = pytest.raises(LogUnreadable, match=r"was removed while the ingest ran.*--take-over")
    with ended, source.following() as driver:
        wait_until(lambda: driver.counters.committed == 1)
        (checkpoint_folder(source.settings) / part).rename(source.catalog / "ingest/lost")
        wait_until(lambda: "ingest" not in {each.name for each in threading.enumerate()})
