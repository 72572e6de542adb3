"""docs/operations.md says what the code does, and speaks of no metric that there is not."""

from __future__ import annotations

import re

from tools.operations import PAGE, main, rows, rows_of_an_ingest


def test_the_page_is_made_of_the_code() -> None:
    main(["--check"])


def test_every_metric_that_it_speaks_of_is_in_its_table() -> None:
    there = {row.split("`")[1] for row in (*rows(), *rows_of_an_ingest())}
    # Queries name a counter as it is answered, and the buckets of a histogram.
    named = re.findall(r"(?<!-m )\b(?:tailrace|process)_[a-z_]+", PAGE.read_text())
    assert {re.sub("_(total|bucket)$", "", name) for name in named} == there
