"""Change streams for tests: a history, written by the pure writer, mangled, and put into files."""

from __future__ import annotations

import json
import random
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from tailrace.cdcv2 import Progress, Reader, Update, Writer
from tailrace_server.cdcv2 import write_container, write_line
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.cdcv2.files import StreamSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tailrace.cdcv2 import Statement

DATA = {
    "type": "record",
    "name": "data",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "price", "type": ["null", "int"]},
    ],
}
SCHEMA = StreamSchema(json.dumps(documented_schema(DATA)))

Row = tuple[int, str, int | None]
"""A row: id, name, price."""


class Change(NamedTuple):
    """An update of the history."""

    row: Row
    time: int
    diff: int


def make_history(seed: int, times: int, keys: int, per_time: int) -> list[Change]:
    """Return updates of a keyed table: inserts, updates with both images, removals; some times are empty."""
    rng = random.Random(seed)
    table: dict[int, Row] = {}
    history: list[Change] = []
    for time in range(1, times + 1):
        if rng.random() < 0.2:
            continue
        for key in rng.sample(range(keys), min(keys, rng.randint(1, per_time))):
            old = table.get(key)
            new = (key, f"näme {rng.randrange(10**6)}", rng.choice([None, rng.randrange(1000)]))
            if old is not None:
                history.append(Change(old, time, -1))
                del table[key]
                if rng.random() < 0.3:
                    continue
            table[key] = new
            history.append(Change(new, time, 1))
    return history


def statements(
    history: Iterable[Change], batch: int, until: int, *, close: bool = False
) -> list[Statement[int]]:
    """Return what a writer makes of a history."""
    writer: Writer[int] = Writer(batch_size=batch)
    told: list[Statement[int]] = []
    writer.write([Update(*change) for change in history])
    for upper in range(batch, until, batch):
        told.extend(writer.advance((upper,)))
    told.extend(writer.advance((until,)))
    if close:
        told.extend(writer.close())
    return told


def mangle(
    told: Sequence[Statement[int]], seed: int, copies: int = 3, window: int = 200
) -> list[Statement[int]]:
    """Return statements repeated, cut anew, and shuffled in windows."""
    rng = random.Random(seed)
    messages: list[Statement[int]] = []
    for statement in told:
        for _ in range(copies):
            if isinstance(statement, Progress):
                messages.append(statement)
                continue
            rows = list(statement)
            if len(rows) > 1 and rng.random() < 0.5:
                cut = rng.randrange(1, len(rows))
                messages.extend((rows[:cut], rows[cut:] + rows[:2]))
            else:
                messages.append(rows + rows[:1])
    keyed = [(place + rng.random() * window, message) for place, message in enumerate(messages)]
    return [message for _, message in sorted(keyed, key=lambda pair: pair[0])]


def to_container(messages: Iterable[Statement[int]], codec: str = "null") -> bytes:
    """Return a container file."""
    out = BytesIO()
    write_container(SCHEMA.form, out, messages, codec=codec)
    return out.getvalue()


def put(path: Path, data: bytes) -> None:
    """Let a file appear, whole."""
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(data)
    aside.rename(path)


def write_files(
    folder: Path, messages: Sequence[Statement[int]], files: int, prefix: str = ""
) -> None:
    """Write messages as files of both kinds."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        some = messages[number::files]
        if number % 3 == 2:
            put(
                folder / f"{prefix}{number:04}.json",
                b"".join(write_line(SCHEMA.form, message) for message in some),
            )
        else:
            put(
                folder / f"{prefix}{number:04}.avro",
                to_container(some, codec=("null", "deflate")[number % 2]),
            )


def read_purely(
    messages: Iterable[Statement[int]],
) -> tuple[dict[int, set[tuple[Row, int]]], Reader[int]]:
    """Return what the pure reader finishes of messages, by time, and the reader."""
    reader: Reader[int] = Reader()
    found: dict[int, set[tuple[Row, int]]] = {}
    for message in messages:
        for updates, _ in reader.receive(message):
            for row, time, diff in updates:
                assert (row, diff) not in found.setdefault(time, set())
                found[time].add((row, diff))  # type: ignore[arg-type]
    return found, reader
