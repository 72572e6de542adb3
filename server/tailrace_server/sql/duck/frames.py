r"""Messages between a process that computes statements and its parent: frames over two pipes.

::

    kind 1 byte │ length 8 bytes, little endian │ content

    asked   TAKE  the bounds of memory and threads, pickled          ◀── DONE
            VALUE text and values, pickled                           ◀── BATCH, a stream of one row or none
            RUN   text, values, and the schemas of tables, pickled   ◀── SCHEMA
            MORE                                                     ◀── BATCH, or END behind the last one
            BACK, behind which the next one is TAKE                      no answer
    in the middle of each
                                              TABLE, the name of one ──▶
            BATCH, or END behind the last one                        ◀──
    any of them                                              ◀── MEMORY, or FAILED: class and text of an
                                                                 error, a line break between them

A batch is an Arrow stream of its own, as it may have dictionaries; a schema is an Arrow message. Pickles are
sent in one direction only: to the process, which runs statements of strangers. Of it only frames are believed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from typing import IO

_LENGTH_BYTES: Final = 8


class FrameKind(IntEnum):
    """The kind of a frame."""

    TAKE = 1
    VALUE = 2
    RUN = 3
    MORE = 4
    BACK = 5
    DONE = 6
    SCHEMA = 7
    BATCH = 8
    END = 9
    TABLE = 10
    FAILED = 11
    MEMORY = 12


def write_frame(stream: IO[bytes], kind: FrameKind, content: bytes | memoryview = b"") -> None:
    """Write one; raises BrokenPipeError where the other one has gone."""
    stream.write(bytes((kind,)) + len(content).to_bytes(_LENGTH_BYTES, "little"))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[FrameKind, bytes]:
    """Read one.

    Raises:
        EOFError: The other one has gone.
    """
    head = stream.read(1 + _LENGTH_BYTES)
    if len(head) <= _LENGTH_BYTES:
        raise EOFError
    length = int.from_bytes(head[1:], "little")
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return FrameKind(head[0]), content


def bytes_of(batch: pa.RecordBatch | pa.Table) -> memoryview:
    """Return rows as a frame has them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    return memoryview(sink.getvalue())


def batch_of(content: bytes) -> pa.RecordBatch | None:
    """Return the rows of a frame; None where it has none."""
    with pa.ipc.open_stream(content) as stream:
        return next(iter(stream), None)
