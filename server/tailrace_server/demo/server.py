"""The demo's server: a separate process, on ports that it prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.demo.errors import DemoFailed

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

    from tailrace_server.demo.processes import Processes

CATALOG: Final = "shop"
_PLACES: Final = (
    ("what the server does", "/"),
    ("GraphiQL", f"/v1/catalogs/{CATALOG}/graphql"),
    ("the REST API", "/v1/docs"),
    ("changes as they come", f"/v1/catalogs/{CATALOG}/changes/live?sinceVersion=0&body=after"),
    ("history", f"/v1/catalogs/{CATALOG}/changes?reverse=true&limit=10&body=after"),
    ("figures", "/metrics"),
)


class DemoServer(NamedTuple):
    """A server that listens. Whoever started it reads its stderr from here on."""

    process: Process
    grpc: str
    """``host:port``."""
    http: str

    def places(self) -> list[tuple[str, str]]:
        """Return what to open in a browser: what it is, and its address."""
        return [(what, f"http://{self.http}{path}") for what, path in _PLACES]


async def start_server(processes: Processes, log: Path, *flags: object) -> DemoServer:
    """Start ``tailrace serve`` and wait until it listens.

    Raises:
        DemoFailed: It ended before; says with which words.
    """
    process = await processes.start("serve", "--log", log, "--log-format", "json", *flags)
    assert process.stderr is not None
    last = b""
    async for line in process.stderr:
        if b'"event": "serving"' in line:
            serving = json.loads(line)
            return DemoServer(process, serving["grpc"], serving["http"])
        last = line
    raise DemoFailed(f"the server did not start: {last.decode().strip()}")
