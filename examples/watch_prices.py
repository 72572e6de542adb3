"""Print every price that changes: column-level captures of one column.

python examples/watch_prices.py --server 127.0.0.1:7411
"""

from __future__ import annotations

import argparse
import asyncio

import tailrace
from tailrace import Content, Criteria


async def watch(server: str, catalog: str) -> None:
    """Print until Ctrl-C; a lost server is waited for."""
    prices = Criteria(entity_type=("product",), container_name=("price",))
    async with (
        tailrace.connect(server) as client,
        client.subscribe(
            catalog,
            prices,
            content=Content.BEFORE | Content.AFTER,
            on_disconnect=lambda lost: print(f"lost: {lost.error}; again in {lost.wait_s:.1f} s"),
        ) as captures,
    ):
        async for capture in captures:
            before = (capture.before or b"(new)").decode()
            after = (capture.after or b"(gone)").decode()
            print(f"product {capture.primary_key}: {before} -> {after}")


def main() -> None:
    """Read the arguments and watch."""
    arguments = argparse.ArgumentParser(description="Print every price that changes.")
    arguments.add_argument("catalog", nargs="?", default="shop")
    arguments.add_argument("--server", default="127.0.0.1:7411")
    given = arguments.parse_args()
    try:
        asyncio.run(watch(given.server, given.catalog))
    except KeyboardInterrupt:
        return
    except tailrace.TailraceError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
