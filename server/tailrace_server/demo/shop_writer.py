"""The writer of ``tailrace play``: it writes the changes of a made-up shop to a log.

``python -m tailrace_server.demo.shop_writer LOG --rate R`` writes until it is killed, which never damages a
log. It prints a line about the changes of each version.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.criteria import Operation
from tailrace_server.demo.processes import CATALOG
from tailrace_server.sample_shop.shop import Shop
from tailrace_server.sample_shop.topics import net_changes
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tailrace_server.sample_shop.topics import NetChange

_MAPPING: Final = """
[entity_types.product]
key = ["id"]
[entity_types.product.columns]
price = {type = "DECIMAL(10,2)", encoding = "decimal.string"}

[entity_types.customer]
key = ["id"]
[entity_types.customer.columns]
since = {type = "TIMESTAMP", encoding = "debezium.MicroTimestamp"}

[entity_types.order]
key = ["id"]
[entity_types.order.columns]
total = {type = "DECIMAL(12,2)", encoding = "decimal.string"}
placed_at = {type = "TIMESTAMP", encoding = "debezium.MicroTimestamp"}

[entity_types.order_line]
key = ["order_id", "line"]
[entity_types.order_line.columns]
price = {type = "DECIMAL(10,2)", encoding = "decimal.string"}
"""
_FIRST_ID: Final = 1_001
"""First id of customers and orders; small, so that people can read the ids and JavaScript has no overflow."""
_SEED: Final = 7


def write_shop(
    log_root: Path, *, now_us: Callable[[], int], pause: Callable[[], None]
) -> Generator[str]:
    """Write the shop's transactions without end; yield a line about each after it is durable and published.

    Args:
        log_root: The log root, in which the catalog is created.
        now_us: Returns the time of the next transaction, in microseconds since 1970.
        pause: Called after each transaction.
    """
    shop = Shop(_SEED, products=24, customers=30, first_id=_FIRST_ID, now_us=now_us)
    mapping = SchemaMapping.parse(_MAPPING)
    with LogWriter.open(log_root, CATALOG, writer="play", mapping=mapping) as log:
        for transaction in shop.transactions():
            changes = net_changes(transaction)
            if not changes:
                continue
            log.append(
                [_mutation(change) for change in changes],
                transaction_id=str(transaction.number),
                source_timestamp=transaction.committed_us,
            )
            receipt = log.commit(publish=True)
            assert receipt is not None  # there was something to commit
            yield f"version {receipt.last_version}: {_in_words(changes)}"
            pause()


def _mutation(change: NetChange) -> Mutation:
    return Mutation(
        change.entity_type,
        change.primary_key,
        Operation.REMOVE if change.after is None else Operation.UPSERT,
        None if change.before is None else change.before.encode(),
        None if change.after is None else change.after.encode(),
    )


def _in_words(changes: Sequence[NetChange]) -> str:
    """Return a text about some changes, such as "1 order inserted, 3 products updated"."""
    counts = Counter((change.entity_type, _verb(change)) for change in changes)
    return ", ".join(
        f"{count} {entity_type.replace('_', ' ')}{'' if count == 1 else 's'} {verb}"
        for (entity_type, verb), count in counts.items()
    )


def _verb(change: NetChange) -> str:
    if change.before is None:
        return "inserted"
    return "removed" if change.after is None else "updated"


class _Pace:
    """A rate limit in calls per second. After a delay, calls do not come faster to catch up."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._due = time.monotonic()

    def __call__(self) -> None:
        """Sleep until the next call is due."""
        now = time.monotonic()
        self._due = max(self._due + self._interval_s, now)
        time.sleep(self._due - now)


def main() -> None:
    """Run the program until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m tailrace_server.demo.shop_writer")
    parser.add_argument("log", type=Path)
    parser.add_argument("--rate", type=float, required=True, help="transactions a second")
    options = parser.parse_args()
    pace = _Pace(options.rate)
    for line in write_shop(options.log, now_us=lambda: time.time_ns() // 1_000, pause=pace):
        print(line, flush=True)


if __name__ == "__main__":
    main()
