"""Server-sent events as a client of graphql-sse reads them, hiding nothing."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.server.api.graphql.conftest import PATH
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from tests.server.api.rest.conftest import Served

EVENTS = {"accept": "text/event-stream"}
COMPLETE = "complete"


class Event(NamedTuple):
    """One event; a comment and what only moves the id have no name."""

    name: str | None
    data: Any
    id: str | None = None


class Events:
    """One stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self._chunks = answer.aiter_text()
        self._text = ""

    async def any(self) -> Event | None:
        """Return the next block, whatever it is; None at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while "\n\n" not in self._text:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    assert not self._text
                    return None
                self._text += chunk
        block, _, self._text = self._text.partition("\n\n")
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
        data = fields.get("data")
        return Event(fields.get("event"), json.loads(data) if data else None, fields.get("id"))

    async def next(self) -> Event:
        """Return the next event that a page is told of."""
        while (found := await self.any()) is not None:
            if found.name is not None:
                return found
        raise AssertionError("the stream has ended")

    async def several(self, count: int) -> list[Event]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[Event]:
        """Return all events to the end of the stream."""
        found = []
        while (event := await self.any()) is not None:
            if event.name is not None:
                found.append(event)
        return found


@asynccontextmanager
async def stream(
    served: Served,
    query: str | None = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    path: str = PATH,
    **variables: Any,
) -> AsyncIterator[Events]:
    """Open an event stream; without a query the path says what of."""
    asked: dict[str, Any] = {}
    if query is not None:
        asked = {"json": {"query": query, "variables": variables}}
        if method == "GET":
            asked = {"params": {"query": query, "variables": json.dumps(variables)}}
    headers = {**EVENTS, **(headers or {})}
    async with served.http.stream(method, path, headers=headers, **asked) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield Events(answer)
