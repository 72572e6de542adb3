"""The page as it is served; what it does in a browser: test_page_in_a_browser.py."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

import tailrace_server.api.operator
from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening

ASSETS = Path(tailrace_server.api.operator.__file__).parent / "assets"
_LINES_MAX = 1_500


async def test_the_page_and_its_files_are_served_under_a_strict_policy(log_root: Path) -> None:
    async with (
        Engine(log_root) as engine,
        listening(engine) as face,
        httpx.AsyncClient(base_url=f"http://{face.address}") as http,
    ):
        page = await http.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        for path in sorted(ASSETS.iterdir()):
            if path.name != "page.html":
                assert (await http.get(f"/page/{path.name}")).content == path.read_bytes()
        assert (await http.get("/page/other.js")).status_code == 404


def test_the_page_has_no_script_or_style_of_its_own_and_links_relatively() -> None:
    page = (ASSETS / "page.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    addresses = re.findall(r'(?:href|src)="([^"]*)"', page)
    for path in ASSETS.glob("*.js"):
        addresses += re.findall(r'(?:from|ask\(|new URL\() ?["`]([^"`]*)["`]', path.read_text())
    assert len(addresses) > 10
    for each in addresses:
        assert not each.startswith(("/", "http")), each


def test_the_page_stays_small() -> None:
    assert sum(len(each.read_text().splitlines()) for each in ASSETS.iterdir()) <= _LINES_MAX
