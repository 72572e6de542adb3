"""Keep a SQLite copy of a table in step with it, through kills, stalls and reconnects.

    python examples/replica.py shop product product.sqlite --server 127.0.0.1:7411

The file has a row for each key, with its image as JSON, and the cursor in the same transaction: so it is always
that of some version, whole. A replica that was killed goes on behind it, with no gap and no repeat.
"""

from __future__ import annotations

import argparse
import asyncio

import tailrace


async def replicate(server: str, catalog: str, entity_type: str, path: str) -> None:
    """Follow a table for ever."""
    async with (
        tailrace.connect(server) as client,
        client.table(catalog, entity_type, path=path) as table,
    ):
        while True:
            print(f"{len(table)} rows of {entity_type} as of version {table.version}", flush=True)
            await table.wait_until(table.version + 1)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Keep a SQLite copy of a table.")
    for name in ("catalog", "entity_type", "path"):
        arguments.add_argument(name)
    arguments.add_argument("--server", default="127.0.0.1:7411")
    try:
        asyncio.run(replicate(**vars(arguments.parse_args())))
    except KeyboardInterrupt:
        pass
    except tailrace.TailraceError as error:
        raise SystemExit(str(error)) from None
