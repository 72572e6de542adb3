"""Pages below the path of a proxy: everything that they name is found relative to where they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import httpx
import pytest

from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

_LINK = re.compile(r'(?:href|src|spec-url)="([^"]+)"')


@pytest.mark.parametrize("path", ["/v1/docs", "/v1/catalogs/shop/graphql", "/v1/system/graphql"])
async def test_pages_link_relatively(log_root: Path, writer: ModelWriter, path: str) -> None:
    found: set[str] = set()
    async with (
        Engine(log_root) as engine,
        listening(engine) as face,
        httpx.AsyncClient(base_url=f"http://{face.address}", headers={"accept": "*/*"}) as http,
    ):
        page = await http.get(path, headers={"accept": "text/html"})
        for link in _LINK.findall(page.text):
            assert not link.startswith("/")
            if not link.startswith("data:"):
                found.add(urljoin(path, link))
        for each in found:
            assert (await http.get(each)).status_code == 200, each
    assert len(found) >= 3
