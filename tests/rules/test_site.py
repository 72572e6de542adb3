"""The pages under docs/ are one site, without a broken link and without another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    pages = sorted(tmp_path.rglob("*.html"))
    assert tmp_path / "index.html" in pages
    found = [url for page in pages for url in LOADED.findall(page.read_text())]
    assert found == []
