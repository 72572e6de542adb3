"""GraphiQL in a browser: it comes from the server alone, and what one clicks there does what it says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.conformance.shop import SHOP, upsert
from tests.server.api.graphql.conftest import PATH
from tests.support.browser import axe, chromium
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from playwright.async_api import Page

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]


OF_GRAPHIQL = frozenset(
    {"color-contrast", "link-in-text-block", "page-has-heading-one", "scrollable-region-focusable"}
)
"""Rules that GraphiQL itself breaks: its own colours, links, headings and scrolled regions."""


@pytest.mark.slow
async def test_graphiql_runs_its_examples_and_asks_nobody_else(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    served = await serve()
    asked: set[str] = set()
    faults: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        page.on("websocket", lambda socket: asked.add(urlsplit(socket.url).netloc))
        page.on("console", lambda note: faults.extend([note.text] * (note.type == "error")))
        page.on("pageerror", lambda error: faults.append(str(error)))

        await page.goto(f"http://127.0.0.1:{served.port}{PATH}")
        await run(page, "Newest")
        await result(page, r'"entityType": "order",\s*"primaryKey": null')
        await run(page, "Columns")
        await result(page, r'"name": "product",\s*"type": "Product"')
        await page.get_by_role("button", name="Show Documentation Explorer").click()
        await page.get_by_text("Root Types").wait_for()
        await page.get_by_role("button", name="Variables").click()
        await page.get_by_role("textbox", name="variables").wait_for(state="attached")
        assert await axe(page, but=OF_GRAPHIQL) == []

        records = sum(1 + len(transaction) for transaction in SHOP)
        await run(page, "Live")
        await result(page, rf'"received": {records}\b')
        writer.write([upsert("8", name="lamp")])
        await result(page, rf'"received": {records + 2}\b.*?name\\":\s?\\"lamp')
        await page.get_by_role("button", name="Stop").click()
        await until(lambda: not observer_of(served.engine, "shop").subscriptions)

        await page.goto(f"http://127.0.0.1:{served.port}/v1/system/graphql")
        await run(page, "Now")
        await result(page, r'"name": "shop",\s*"publishedVersion": 6\b')
    assert asked == {f"127.0.0.1:{served.port}"}
    assert not faults


async def run(page: Page, operation: str) -> None:
    """Press play and choose an operation of the example.

    Play has a menu once the page has found the operations; before that it would run the first one.
    """
    play = page.get_by_role("button", name="Execute").and_(page.locator("[aria-haspopup=menu]"))
    await play.click()
    await page.get_by_role("menuitem", name=operation).click()


async def result(page: Page, pattern: str) -> None:
    """Wait until what is shown of the result matches."""
    shown = page.locator(".result-window .CodeMirror-code")
    await shown.filter(has_text=re.compile(pattern, re.S)).wait_for()
