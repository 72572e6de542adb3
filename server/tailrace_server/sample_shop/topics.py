"""The shop's transactions as Debezium's topics, written to files part by part.

As in Debezium, there is one topic for each table, and one for transaction metadata. The feed is cut into
*parts*, and each topic has one file for each part. A part may end inside a transaction. Concurrent transactions
have interleaved log sequence numbers. Lines are ``{"key": …, "value": …}``; a delete is followed by its
tombstone.
"""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from tailrace_server.sample_shop.shop import KEYS, RowStep, Shop, ShopTransaction, image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

FORM: Final = "debezium"
"""Name of the source that can read the files."""
METADATA: Final = "shop.transaction"
_LSN_STEP: Final = 56


class FeedLine(NamedTuple):
    """A line of a topic."""

    topic: str
    line: str


class NetChange(NamedTuple):
    """The net effect of a transaction on one row."""

    entity_type: str
    primary_key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed in memory: the lines to write, and the transactions that an ingest must produce from them."""

    messages: list[FeedLine]
    """The lines, in the order in which Debezium sends them."""
    transactions: list[ShopTransaction]
    """The transactions, in commit order; the first is the snapshot."""


def make_feed(seed: int = 7, transactions: int = 3_000) -> Feed:
    """Make a feed; equal arguments give equal bytes."""
    made = list(Shop(seed).transactions(transactions))
    lsns = itertools.count(24_000_000, _LSN_STEP)
    last_commit = 0
    messages: list[FeedLine] = []
    # Two transactions at a time are concurrent: their LSNs are interleaved, their lines in commit order.
    for pair in _pairs(made):
        numbers = _interleave(pair, lsns)
        for transaction, places in zip(pair, numbers, strict=True):
            messages.extend(_messages(transaction, places, last_commit))
            last_commit = next(lsns)
    return Feed(messages, made)


def net_changes(transaction: ShopTransaction) -> list[NetChange]:
    """Return the net effect of a transaction on each row, in the order of the rows' last changes."""
    rows: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    for step in transaction.steps:
        at = (step.table, _key_text(step))
        before = rows.pop(at, (_image(step.before), None))[0]
        rows[at] = (before, _image(step.after))
    return [
        NetChange(table, key, before, after)
        for (table, key), (before, after) in rows.items()
        if before != after
    ]


def write_feed(feed: Feed, out: Path, parts: int = 4) -> Iterator[list[Path]]:
    """Write a feed part by part; yield the paths of each part's files after they are written.

    A file appears complete: it is written under a name that begins with a dot, then renamed.

    Raises:
        FileExistsError: The folder has a feed already. An ingest that has read its files would not read new
            ones of the same names.
    """
    out.mkdir(parents=True, exist_ok=True)
    if there := sorted(out.glob(f"{METADATA}-*.json")):
        raise FileExistsError(errno.EEXIST, "has a feed already", str(there[0]))
    size = -(-len(feed.messages) // parts)
    for part in range(parts):
        topics: dict[str, list[bytes]] = {}
        for message in feed.messages[part * size : (part + 1) * size]:
            topics.setdefault(message.topic, []).append(message.line.encode())
        yield [
            write_part(out, f"{topic}-{part:05}.json", topics[topic]) for topic in sorted(topics)
        ]


def write_part(out: Path, name: str, lines: Iterable[bytes]) -> Path:
    """Write one file of lines under a temporary name, then rename it."""
    aside = out / f".{name}"
    aside.write_bytes(b"".join(line + b"\n" for line in lines))
    final = out / name
    os.rename(aside, final)
    return final


def _interleave(pair: Sequence[ShopTransaction], lsns: Iterator[int]) -> list[list[int]]:
    """Give LSNs to the steps of concurrent transactions in turn; return the LSNs of each transaction."""
    numbers: list[list[int]] = [[] for _ in pair]
    waiting = [len(transaction.steps) for transaction in pair]
    while any(waiting):
        for place, left in enumerate(waiting):
            if left:
                numbers[place].append(next(lsns))
                waiting[place] -= 1
    return numbers


def _messages(
    transaction: ShopTransaction, lsns: list[int], last_commit: int
) -> Iterator[FeedLine]:
    name = f"{transaction.number}:{lsns[-1]}"
    millis = transaction.committed_us // 1000
    if not transaction.snapshot:
        yield FeedLine(
            METADATA,
            f'{{"status":"BEGIN","id":"{name}","event_count":null,"data_collections":null,"ts_ms":{millis}}}',
        )
    if transaction.snapshot:
        lsns = [lsns[-1]] * len(lsns)  # all rows of a snapshot have its position
    for order, (step, lsn) in enumerate(zip(transaction.steps, lsns, strict=True), 1):
        topic = f"shop.public.{step.table}"
        key = image(step.key)
        block = (
            "null"
            if transaction.snapshot
            else f'{{"id":"{name}","total_order":{order},"data_collection_order":{order}}}'
        )
        commit = f'\\"{last_commit}\\"' if last_commit else "null"
        source = (
            f'{{"version":"3.0.0.Final","connector":"postgresql","name":"shop","ts_ms":{millis},'
            f'"snapshot":"{str(transaction.snapshot).lower()}","db":"shop",'
            f'"sequence":"[{commit},\\"{lsn}\\"]","ts_us":{transaction.committed_us},'
            f'"schema":"public","table":"{step.table}","txId":{transaction.number},"lsn":{lsn},"xmin":null}}'
        )
        yield FeedLine(
            topic,
            f'{{"key":{key},"value":{{"before":{_image(step.before) or "null"},'
            f'"after":{_image(step.after) or "null"},"source":{source},"transaction":{block},'
            f'"op":"{step.op}","ts_ms":{millis + 3}}}}}',
        )
        if step.op == "d":
            yield FeedLine(topic, f'{{"key":{key},"value":null}}')
    if not transaction.snapshot:
        counts = {table: sum(s.table == table for s in transaction.steps) for table in KEYS}
        tables = ",".join(
            f'{{"data_collection":"public.{table}","event_count":{count}}}'
            for table, count in counts.items()
            if count
        )
        yield FeedLine(
            METADATA,
            f'{{"status":"END","id":"{name}","event_count":{len(lsns)},'
            f'"data_collections":[{tables}],"ts_ms":{millis}}}',
        )


def _image(row: dict[str, str] | None) -> str | None:
    return None if row is None else image(row)


def _key_text(step: RowStep) -> str:
    values = list(step.key.values())
    if len(values) > 1:
        return f"[{','.join(values)}]"
    return str(orjson.loads(values[0])) if values[0].startswith('"') else values[0]


def _pairs(transactions: list[ShopTransaction]) -> Iterator[tuple[ShopTransaction, ...]]:
    for start in range(0, len(transactions), 2):
        yield tuple(transactions[start : start + 2])
