"""The operator's page in a browser: what it shows and does, by keyboard, and what axe-core says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tailrace.criteria import Criteria, Since
from tailrace.position import Position
from tailrace_server.access.api_keys import ApiKeys, new_key, write_keys
from tailrace_server.access.door import Door
from tailrace_server.api.operator import RecentLines
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tests.conformance.http_drivers import listening
from tests.server.engine.test_engine import upsert
from tests.support.browser import axe, chromium

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

SUBSCRIBERS = 300


@pytest.mark.slow
async def test_the_page_shows_a_busy_server_and_ends_a_subscription_by_keyboard(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine, listening(engine, lines=RecentLines()) as face:
        for number in range(SUBSCRIBERS):
            is_behind = not number
            await engine.subscribe(
                ANONYMOUS,
                "shop",
                (Criteria(primary_key=(str(number % 20),)),),
                start=Since(Position(0)) if is_behind else None,
                codec=JSON,
                demand=0,
                peer=Peer("grpc", f"10.0.0.{9 if is_behind else 7}:{number}", "tailrace-python"),
            )
        asked, faults = set[str](), list[str]()
        async with chromium() as browser:
            page = await browser.new_page()
            page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda said: faults.append(said.text))

            # 1. Figures, bounded, who is behind first; no fault of accessibility in either theme.
            await page.goto(f"http://{face.address}/")
            await page.get_by_text(f"the 200 furthest behind of {SUBSCRIBERS}").wait_for()
            assert await page.locator("#subscribers tbody tr").count() == 200
            assert await page.locator("#publishers tbody tr").count() == 20
            assert "10.0.0.9:0" in await page.locator("#subscribers tbody tr").first.inner_text()
            await page.get_by_label("Only those with").fill("10.0.0.9")
            for theme in ("light", "dark"):
                await page.emulate_media(color_scheme=theme)
                assert await axe(page) == []

            # 2. The live tail: old → new.
            await page.get_by_role("button", name="Follow").click()
            await page.get_by_text("Follows shop").wait_for()
            writer.write([upsert(17)])
            await page.locator("#tail tbody tr").filter(has_text="17").first.wait_for()
            await page.get_by_role("button", name="Stop").click()

            # 3. The end of a subscription, by keyboard alone.
            await page.get_by_label("Only those with").focus()
            await page.keyboard.press("Tab")  # the table, which can be scrolled
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")
            await page.get_by_text("10.0.0.9:0 (tailrace-python), on shop: key 0").wait_for()
            assert await axe(page) == []
            await page.keyboard.type("it asks for everything")
            await page.keyboard.press("Enter")
            await page.locator("dialog").wait_for(state="hidden")
            await page.get_by_text(f"of {SUBSCRIBERS - 1}").wait_for()
            left = {each.options.peer.address for _, each in engine.subscriptions(ANONYMOUS)}
            assert len(left) == SUBSCRIBERS - 1
            assert "10.0.0.9:0" not in left
            assert asked == {str(face.address)}
            assert faults == []

            # 4. A server that is gone is said to be.
            face.stop(0)
            # A busy server is asked after two minutes at most; a page that goes on after a pause asks at once.
            await page.get_by_role("button", name="Pause").click()
            await page.get_by_role("button", name="Pause").click()
            await page.get_by_role("alert").filter(has_text="No answer").wait_for()
            assert await axe(page) == []


@pytest.mark.slow
async def test_a_server_that_asks_who_is_there_is_shown_a_token_that_is_kept_nowhere(
    log_root: Path, tmp_path: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    token, key = new_key("grafana")
    write_keys(tmp_path / "keys", {key.name: key})
    door = Door([ApiKeys(tmp_path / "keys")])
    async with (
        Engine(log_root) as engine,
        listening(engine, door=door) as face,
        chromium() as browser,
    ):
        page = await browser.new_page()
        addresses: list[str] = []
        for event in ("request", "websocket"):
            page.on(event, lambda asked: addresses.append(asked.url))
        await page.goto(f"http://{face.address}/")
        await page.get_by_text("This server asks who you are.").wait_for()
        assert await axe(page) == []
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await page.get_by_role("alert").filter(has_text="neither a JWT").wait_for()
        await page.get_by_label("Token", exact=True).fill(token)
        await page.keyboard.press("Enter")
        await page.get_by_role("cell", name="shop").first.wait_for()
        await page.get_by_role("button", name="Follow").click()
        await page.get_by_text("Follows shop").wait_for()
        assert any(each.startswith("ws:") for each in addresses)
        assert not any(token in each for each in addresses)
        kept = (
            "() => JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        )
        assert token not in await page.evaluate(kept)
        assert token not in await page.content()
        await page.reload()
        await page.get_by_text("This server asks who you are.").wait_for()
