"""Headless Chromium of the system, driven by Playwright, which brings no browser of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from playwright.async_api import async_playwright

from tests.support.programs import PATIENCE_S, found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from playwright.async_api import BrowserContext


@asynccontextmanager
async def chromium(**options: Any) -> AsyncIterator[BrowserContext]:
    """Run a browser for the time of the block; whatever is waited for in it has a deadline.

    Args:
        options: Of Playwright's ``new_context``.
    """
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found("chromium"))
        try:
            context = await browser.new_context(**options)
            context.set_default_timeout(PATIENCE_S * 1e3)
            yield context
        finally:
            await browser.close()
