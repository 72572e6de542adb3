"""How snapshot rows are cut into versions: by number, and at every other change of their sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.transactions.grouping import group
from tailrace_server.pipeline.transactions.settings import Rules
from tailrace_server.pipeline.transactions.tally import cut_snapshots, tally
from tests.server.pipeline.shapes import decode, envelope, postgres

if TYPE_CHECKING:
    from tailrace_server.pipeline.input.change import Change

RULES = Rules(idle_s=5.0)


def row(lsn: int, tx: int | None, table: str = "product", op: str = "c") -> dict[str, object]:
    return envelope(op, postgres(lsn, tx, table), after={"id": lsn})


def test_snapshot_rows_are_cut_by_number_over_all_files() -> None:
    rows = [row(5, None, op="r") for _ in range(4)]
    changes = decode(*rows, file="a") + decode(*rows[:3], file="b")
    tallies, cuts = cut_snapshots(tally(changes, 0.0), 3, "0")
    assert sorted(t.rows for t in tallies.values()) == [1, 3, 3]
    assert [(c.start, c.stop, c.offset) for c in cuts] == [
        (0, 3, 0),
        (3, 4, 0),
        (0, 2, 4),
        (2, 3, 4),
    ]
    plan = group(tallies, {}, {}, RULES, now=0.0)
    assert [(r.snapshot, r.tally.rows) for r in plan.released] == [(True, 3), (True, 3), (True, 1)]


def cut(*files: list[Change]) -> list[int]:
    """Return the numbers of snapshot rows in the versions of files, in version order."""
    changes = [change for file in files for change in file]
    tallies, _ = cut_snapshots(tally(changes, 0.0), 100, "0")
    plan = group(tallies, {}, {}, RULES, now=0.0, ended=True)
    return [r.tally.rows for r in plan.released if r.snapshot]


def test_a_change_between_snapshot_rows_parts_them() -> None:
    read, change = row(5, None, op="r"), row(6, 7)
    assert cut(decode(read, read, change, read, file="a")) == [2, 1]


def test_rows_at_the_heads_of_files_share_a_version_and_rows_behind_a_change_do_not() -> None:
    read, change = row(5, None, op="r"), row(6, 7)
    other = row(5, None, "customer", "r")
    assert cut(decode(read, change, file="a"), decode(other, file="b")) == [2]
    assert cut(decode(read, change, file="a"), decode(read, file="b")) == [1, 1]
