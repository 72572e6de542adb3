"""``python -m tailrace_server.sample_shop --out DIR``: write the shop's feed."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tailrace_server.sample_shop.topics import make_feed, write_feed


def main() -> None:
    """Write the feed part by part, then print the numbers of transactions, messages and files."""
    parser = argparse.ArgumentParser(
        prog="python -m tailrace_server.sample_shop", description=__doc__
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the files; made if absent"
    )
    parser.add_argument("--seed", type=int, default=7, help="equal seeds give equal bytes")
    parser.add_argument("--transactions", type=int, default=3_000)
    parser.add_argument("--parts", type=int, default=4, help="files for each topic")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between parts, as a live source would"
    )
    options = parser.parse_args()
    feed = make_feed(options.seed, options.transactions)
    files = 0
    try:
        for part in write_feed(feed, options.out, options.parts):
            if files:
                time.sleep(options.pause)
            files += len(part)
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}; name another folder")
    print(
        f"{len(feed.transactions) - 1} transactions and a snapshot, {len(feed.messages)} messages, "
        f"{files} files in {options.out}"
    )


if __name__ == "__main__":
    main()
