"""The OpenAPI document in a browser, which loads it from this server alone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tailrace_server.api.rest import openapi
from tests.support.browser import axe, chromium

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served

    Serve = Callable[..., Awaitable[Served]]


RAPIDOC = frozenset({"color-contrast", "page-has-heading-one"})
"""Rules that the viewer itself breaks: its own colours and headings."""


@pytest.mark.slow
async def test_the_document_is_shown_and_no_other_host_is_asked(serve: Serve) -> None:
    """The page shows every operation."""
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
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda note: faults.extend([note.text] * (note.type == "error")))

        await page.goto(f"{root}/v1/docs")
        for summary in sorted(set(operations)):
            await page.get_by_text(summary).first.wait_for(state="attached")

        assert await axe(page, but=RAPIDOC) == []

    asked.discard("")  # what a page makes of itself, by data:
    assert asked == {f"127.0.0.1:{served.port}"}
    assert not faults
