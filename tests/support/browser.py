"""Headless Chromium of the system, driven by Playwright, which brings no browser of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.async_api import async_playwright

from tests.support.programs import PATIENCE_S, found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import BrowserContext, Page

AXE = Path(__file__).parents[1] / "browser/node_modules/axe-core/axe.min.js"
_RUN_AXE = """async () => {
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => [id, ...nodes.map(({ target }) => target.join(" "))]);
}"""


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


async def axe(page: Page, *, but: frozenset[str] = frozenset()) -> list[Any]:
    """Return what axe-core finds wrong with a page, but for some rules: each with its elements."""
    await page.evaluate(AXE.read_text())
    found: list[Any] = await page.evaluate(_RUN_AXE)
    return [each for each in found if each[0] not in but]
