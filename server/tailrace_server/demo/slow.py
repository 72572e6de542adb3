"""The demo's slow subscriber: a separate program, a gRPC client with a small demand and long pauses.

It reads a few captures, pauses, and reads the next. Whenever it has caught up, it stops reading entirely until
the log is a few hundred versions ahead. The demand is enough for that: the server sends only what was requested
and buffers nothing for this subscriber. When the subscriber's position has left the ring, the server serves it
from the log.

The program prints each capture, including lead records, and each heartbeat in JSON, and its own actions as
``{"does": …}``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import tailrace
from tailrace_server.cli.terminal.capture_lines import render_heartbeat, render_line

DEMAND = 64
"""Maximum number of captures that are requested and not yet received."""
PAUSE_S = 0.02
"""Pause after each group of captures, in seconds."""
LIVE_S = 1.0
"""Time that the subscriber stays live before it stops reading again, in seconds."""
PATIENCE_S = 5.0
"""Time without a publication after which the source counts as ended, in seconds."""


async def main(server: str, catalog: str, behind: int) -> None:
    """Read without end; after catching up, stop reading until ``behind`` more versions have been published."""
    async with (
        tailrace.connect(server) as client,
        client.subscribe(
            catalog, since=0, content=tailrace.Content.BODY, demand=DEMAND
        ) as subscription,
    ):
        _say(f"subscription {subscription.acknowledgement.subscription_id}")
        loop = asyncio.get_running_loop()
        live_since, done = float("inf"), False
        async for message in subscription.messages():
            if isinstance(message, tailrace.Heartbeat):
                _write(render_heartbeat(message))
                # Not caught up yet. `live_since` is the first heartbeat at which it had.
                if message.published > message.cursor.version:
                    continue
                live_since = min(live_since, loop.time())
                if not done and loop.time() - live_since >= LIVE_S:
                    _say(f"stops reading at version {message.cursor.version:,}")
                    done = not await _stall(client, catalog, message.cursor.version, behind)
                    _say("reads again")
                    live_since = float("inf")
            elif isinstance(message, tuple):
                _write(b"".join(render_line(each) for each in message))
                await asyncio.sleep(PAUSE_S)


async def _stall(client: tailrace.Client, catalog: str, version: int, behind: int) -> bool:
    """Wait until ``behind`` more versions are published; return False if the source has ended."""
    loop = asyncio.get_running_loop()
    newest, since = version, loop.time()
    while newest < version + behind:
        await asyncio.sleep(0.1)
        [found] = [each for each in await client.list_catalogs() if each.name == catalog]
        if found.published > newest:
            newest, since = found.published, loop.time()
        elif loop.time() - since > PATIENCE_S:
            return False
    return True


def _say(what: str) -> None:
    _write(json.dumps({"does": what}).encode() + b"\n")


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--behind", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(main(given.server, given.catalog, given.behind))
