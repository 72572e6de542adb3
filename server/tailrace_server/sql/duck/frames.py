r"""Messages between a process that computes statements and its parent: frames over two pipes.

::

    kind 1 byte │ length 8 bytes, little endian │ content

    asked   TAKE  the bounds of memory and threads, pickled          ◀── DONE
            VALUE text and values, pickled                           ◀── BATCH, a stream of one row or none
            RUN   text, values, and the schemas of tables, pickled   ◀── SCHEMA
            MORE                                                     ◀── BATCH, or END after the last one
            BACK; the next request is TAKE                               no answer
    before any of these answers, the process may ask for rows of a table
            BATCH, or END after the last one                         ◀── TABLE, the name of the table
    instead of any answer                                    ◀── MEMORY, or FAILED: class and text of an
                                                                 error, a line break between them

Each batch is a complete Arrow stream, as it may have dictionaries; a schema is an Arrow message. Pickles are
sent only to the process, never by it: the process runs statements of strangers, so its parent must not unpickle
anything from it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from typing import IO

_LENGTH_BYTES: Final = 8


class FrameKind(IntEnum):
    """The kind of a frame; the module has their contents."""

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
    """Write one frame. Raises BrokenPipeError if the reader is gone."""
    stream.write(bytes((kind,)) + len(content).to_bytes(_LENGTH_BYTES, "little"))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[FrameKind, bytes]:
    """Read one frame.

    Raises:
        EOFError: The writer is gone.
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
    """Return rows as the content of a frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    return memoryview(sink.getvalue())


def batch_of(content: bytes) -> pa.RecordBatch | None:
    """Return the rows in a frame's content; None if there are none."""
    with pa.ipc.open_stream(content) as stream:
        return next(iter(stream), None)
