"""What answers say about being kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


async def test_nothing_is_kept_unless_the_answer_says_who_may(log_root: Path) -> None:
    asked = {
        "/health": (200, "no-store"),
        "/metrics": (200, "no-store"),
        "/subscriptions": (200, "no-store"),
        "/publishers": (200, "no-store"),
        "/v1/catalogs": (200, "no-store"),
        "/v1/catalogs/none/schema": (404, "no-store"),
        "/nowhere": (404, "no-store"),
        "/": (200, "no-cache"),
    }
    found = {}
    async with Engine(log_root) as engine, listening(engine) as face:
        url = f"http://{face.address}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            for path in asked:
                answer = await http.get(path)
                said = answer.headers.get_list("cache-control")
                found[path] = (answer.status_code, ", ".join(said))
            strange = await http.get("/health", headers={"Host": "evil.example"})
    assert found == asked
    assert (strange.status_code, strange.headers["cache-control"]) == (421, "no-store")
