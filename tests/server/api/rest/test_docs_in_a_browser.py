"""The OpenAPI and AsyncAPI documents in a browser: shown, and by nothing but this server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tailrace_server.api.rest import asyncapi, openapi
from tests.support.browser import axe, chromium

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served

    Serve = Callable[..., Awaitable[Served]]


RAPIDOC = frozenset({"color-contrast", "page-has-heading-one"})
"""Rules that the viewer itself breaks: its own colours and headings."""


@pytest.mark.slow
async def test_both_documents_are_shown_and_nobody_else_is_asked(serve: Serve) -> None:
    """Every operation of the one, every message, channel and component of the other."""
    served = await serve()
    root = f"http://127.0.0.1:{served.port}"
    asked: set[str] = set()
    faults: list[str] = []
    operations = [
        operation["summary"]
        for path in openapi.document()["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict)
    ]
    document = asyncapi.document()
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda note: faults.extend([note.text] * (note.type == "error")))

        await page.goto(f"{root}/v1/docs")
        for summary in sorted(set(operations)):
            await page.get_by_text(summary).first.wait_for(state="attached")

        assert await axe(page, but=RAPIDOC) == []

        await page.goto(f"{root}/v1/docs/live")
        for name in (*document["components"]["messages"], *document["components"]["schemas"]):
            await page.locator(f"section[id='{name}'] h3").first.wait_for()
        for channel in document["channels"].values():
            await page.get_by_text(channel["address"]).first.wait_for()
        for theme in ("light", "dark"):
            await page.emulate_media(color_scheme=theme)
            assert await axe(page) == []
        await page.set_viewport_size({"width": 375, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") == 375
    asked.discard("")  # what a page makes of itself, by data:
    assert asked == {f"127.0.0.1:{served.port}"}
    assert not faults
