"""docs/settings.md is what the code says, and nothing that carries a reason is missing from it."""

from __future__ import annotations

from tailrace_server.config import EVERY
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
