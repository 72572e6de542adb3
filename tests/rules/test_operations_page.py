"""docs/operations.md says what the code does, and speaks of no metric that there is not."""

from __future__ import annotations

import re

from tools.operations import PAGE, main, rows


def test_the_page_is_made_of_the_code() -> None:
    main(["--check"])


def test_every_metric_that_it_speaks_of_is_in_its_table() -> None:
    there = {row.split("`")[1] for row in rows()}
    assert set(re.findall(r"`(tailrace_\w+)`", PAGE.read_text())) == there
