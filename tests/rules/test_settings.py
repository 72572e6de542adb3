"""docs/settings.md is what the code says, and nothing that carries a reason is missing from it."""

from __future__ import annotations

import pytest

from tailrace_server.settings import EVERY
from tools import settings
from tools.settings import PAGE, main


def test_the_page_is_what_the_code_says() -> None:
    main(["--check"])


def test_every_flag_of_serve_stands_on_the_page() -> None:
    page = PAGE.read_text()
    assert all(f"`{each.flag}`" in page for each in EVERY)


def test_client_log_and_pipeline_have_their_sections() -> None:
    page = PAGE.read_text()
    for title in ("The Python client", "The log", "The pipeline: `tailrace ingest debezium`"):
        assert f"\n## {title}\n" in page


@pytest.mark.parametrize(
    "name",
    [
        "wal.state.tailer.POLL_MIN_S",
        "wal.upkeep.compaction.DUE_SEGMENTS",
        "wal.state.checkpoint.CHECKPOINT_ENTRIES_MIN",
        "wal.segment.carried.BYTES_MAX",
        "pipeline.transactions.driver_state.CLOSED_IDS",
        "log_cache.memory_governor.PATIENCE_S",
        "TAILRACE_SERVER",
    ],
)
def test_bounds_of_every_kind_of_unit_and_variables_of_commands_stand_on_the_page(
    name: str,
) -> None:
    assert f"`{name}`" in PAGE.read_text()


@pytest.mark.slow
def test_a_bound_that_would_be_left_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of a section here; of a unit or a reason it is left out in the same way."""
    sections = [each for each in settings.ELSEWHERE if each[0] != "Bounds of change streams"]
    monkeypatch.setattr(settings, "ELSEWHERE", sections)
    with pytest.raises(SystemExit, match=r"not be on the page.*cdcv2\.form\.DEPTH_MAX"):
        settings.render()
