"""The pages under docs/ are one site, without a broken link and without another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import chromium
from tools.site import place, rewritten

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"<(?:script|img|source|link)\b[^>]*?(?:src|srcset|href)=\"(https?:[^\"]+)\"")
"""What a browser fetches for a page without being asked."""


def test_links_lead_to_the_same_files_on_the_site() -> None:
    text = (
        "[a](glossary.md#log) [b](../CONTRIBUTING.md) [c](../examples/replica.py) [d](../examples)"
    )
    assert rewritten("docs/architecture.md", text) == (
        "[a](glossary.md#log) [b](contributing.md) [c](source/examples/replica.py.txt) "
        "[d](source/examples.md)"
    )
    assert rewritten("docs/adr/README.md", "[e](../wal-format.md)") == "[e](../wal-format.md)"
    assert (
        rewritten("README.md", '<img src="docs/images/demo.svg">') == '<img src="images/demo.svg">'
    )


def test_links_of_other_hosts_and_in_code_stay() -> None:
    text = "[a](https://example.org/README.md)\n\n```\n[b](../README.md)\n```\n"
    assert rewritten("docs/rest.md", text) == text


def test_a_file_outside_docs_is_a_page_or_a_text() -> None:
    assert place("docs/adr/README.md") == "adr/README.md"
    assert place("bench/README.md") == "bench.md"
    assert place("proto/tailrace/v1/capture.proto") == "source/proto/tailrace/v1/capture.proto.txt"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert site / "index.html" in pages
    assert [url for page in pages for url in LOADED.findall(page.read_text())] == []


@pytest.mark.slow
async def test_the_site_has_the_colours_of_the_system_until_a_reader_chooses_others(
    site: Path,
) -> None:
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto((site / "index.html").as_uri())

        async def has(scheme: str) -> None:
            await page.locator(f"body[data-md-color-scheme={scheme}]").wait_for()

        await page.emulate_media(color_scheme="dark")
        await has("slate")
        await page.emulate_media(color_scheme="light")
        await has("default")
        await page.emulate_media(color_scheme="dark")
        await page.get_by_title("Use light colours").click()
        await has("default")
        await page.get_by_title("Use dark colours").click()
        await has("slate")
