"""A writer killed at any instant: nothing lost that was committed, nothing twice, versions dense."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import finish, python, rows_of, transactions_in, write

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sys
from pathlib import Path
from tests.support import failpoints
from tailrace_server.wal import transaction_buffer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tests.server.wal.logs import upsert
writer = LogWriter.open(Path(sys.argv[1]), "shop")
failpoints.arm(sys.argv[2])
number = writer.state.last_version
while True:
    number += 1
    transaction_buffer.ROWS_MAX = 64 * (number % 2)  # records carried by the entry, and in a file, in turn
    writer.append([upsert(str(number))])
    at_once = number % 4 > 1
    writer.commit(publish=at_once)
    print("committed", number, flush=True)
    if not at_once:
        writer.publish()
    print("published", number, flush=True)
    if number % 5 == 0:
        writer.compact()
    if number % 12 == 0:
        writer.trim(before=number - 8)
    if number % 6 == 0:
        delete_unnamed(Path(sys.argv[1]) / "shop", 1 << 60)
"""

PLACES = [
    *("segment.before_rename", "segment.after_rename", "commit.checked"),
    *("schema.before_link", "schema.linked", "schema.after_link"),
    *("entry.before_link", "entry.linked", "entry.after_link"),
    *("publication.before_link", "publication.linked", "publication.after_link"),
    *("checkpoint.before_link", "checkpoint.linked", "checkpoint.after_link", "objects.deleted"),
]


def acknowledged(out: str, what: str) -> int:
    """Return the last version that a writer said it had committed or published."""
    numbers = [int(line.split()[1]) for line in out.splitlines() if line.startswith(what)]
    return max(numbers, default=0)


def check(log_root: Path, committed: int, published: int) -> int:
    """Reopen as the next writer does; return the newest version, whose numbers must be dense."""
    result = verify(log_root / "shop")
    assert result.sound, result.faults
    write(log_root, "shop", 1)
    rows = rows_of(log_root / "shop")
    numbers = [int(key) for key in transactions_in(rows)]
    versions: list[int] = [row[1] for row in rows if row[2] == 1]
    assert numbers == versions == list(range(versions[0], versions[-1] + 1))
    assert versions[-1] > max(committed, published)
    assert versions[-1] <= committed + 2
    return versions[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "at"),
    # Of the entries the second and the third one publish themselves, of the publications none does.
    [(place, 1 if place.startswith(("schema", "checkpoint")) else 3) for place in PLACES]
    + [(place, 2) for place in PLACES if place.startswith("entry")],
)
def test_contract_34_a_writer_killed_at_a_named_place_loses_and_doubles_nothing(
    log_root: Path, place: str, at: int
) -> None:
    process = python(WRITER, log_root, f"{place}=kill@{at}")
    status, out, err = finish(process)
    assert status == -signal.SIGKILL, err
    check(log_root, acknowledged(out, "committed"), acknowledged(out, "published"))


@pytest.mark.slow
def test_contract_34_a_writer_killed_at_random_times_loses_and_doubles_nothing(
    log_root: Path,
) -> None:
    chosen = random.Random(7)
    for _ in range(8):
        process = python(WRITER, log_root, "")
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(chosen.randrange(1, 40))]
        process.kill()
        _, rest, _ = finish(process)
        out = "".join(lines) + rest
        check(log_root, acknowledged(out, "committed"), acknowledged(out, "published"))
