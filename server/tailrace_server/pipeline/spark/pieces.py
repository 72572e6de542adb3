"""Pieces: what Spark sees of the rows that tasks exchange, as rows of `FRAME`.

Spark sees no single change. A row of `FRAME` is a *piece*: one binary value with an Arrow table of thousands of
rows, or with a pickled result. So Spark's exchange, cache and retries can be used, at a cost for each piece and
not for each row. The task that receives the pieces of a share joins their tables.
"""

from __future__ import annotations

import gc
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FRAME: Final = pa.schema(
    [
        pa.field("share", pa.int32(), nullable=False),
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("piece", pa.binary(), nullable=False),
    ]
)
"""Schema of pieces: ``share`` is the number of the task that gets the row next; the meaning of ``kind`` is that
of the steps that exchange the pieces."""

Piece = tuple[int, int, bytes]
"""A row of `FRAME`: share, kind and content."""

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Do not search for reference cycles in the block.

    A task has hundred thousands of rows as objects, without cycles. Each search reads all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def encoded(rows: pa.RecordBatch, *, compressed: bool = False) -> bytes:
    """Return a table as the content of a piece.

    Args:
        rows: The table.
        compressed: True to compress; worth it for images, which repeat themselves and are moved several times.
    """
    sink = pa.BufferOutputStream()
    options = _COMPRESSED if compressed else None
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    return sink.getvalue()  # type: ignore[no-any-return]


def decoded(piece: bytes) -> pa.RecordBatch:
    """Return the table in a piece; unless it was compressed, the table uses the piece's memory."""
    with pa.ipc.open_stream(piece) as stream:
        return stream.read_next_batch()


def frame(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Return pieces as a table of `FRAME`."""
    shares, kinds, values = zip(*pieces, strict=True)
    offsets = pa.array([0, *itertools.accumulate(map(len, values))], pa.int32()).buffers()[1]
    # One piece, the usual case, is not copied.
    content = pa.py_buffer(values[0] if len(values) == 1 else b"".join(values))
    binary = pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, content])
    return pa.RecordBatch.from_arrays(
        [pa.array(shares, pa.int32()), pa.array(kinds, pa.int32()), binary], schema=FRAME
    )


def pieces_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, Any]]:
    """Yield share, kind and content of each piece; the content is a buffer in the batch's memory."""
    for batch in batches:
        values = batch.column("piece")
        columns = batch.column("share").to_pylist(), batch.column("kind").to_pylist()
        for row, (share, kind) in enumerate(zip(*columns, strict=True)):
            yield share, kind, values[row].as_buffer()
