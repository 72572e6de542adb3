"""The shop that ``tailrace play`` shows: what its writer says is what the log holds."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from tailrace.criteria import Area
from tailrace_server.demo.check import read_log
from tailrace_server.demo.shop_writer import write_shop

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = 200
"""So many that everything that the shop does has happened."""


def test_a_line_tells_what_its_version_holds_once_that_is_published(tmp_path: Path) -> None:
    ticks = itertools.count(1_795_000_000_000_000, 1_000)
    writing = write_shop(tmp_path, now_us=lambda: next(ticks), pause=lambda: None)
    lines = list(itertools.islice(writing, VERSIONS))
    facts = read_log(tmp_path / "shop")
    writing.close()
    assert facts.published == VERSIONS
    changes = Counter(row.version for row in facts.rows if row.area is Area.DATA)
    for version, line in enumerate(lines, 1):
        head, _, words = line.partition(": ")
        assert head == f"version {version}"
        assert sum(int(part.split()[0]) for part in words.split(", ")) == changes[version], line
    assert {line.rsplit(maxsplit=1)[-1] for line in lines} == {"inserted", "updated", "removed"}
