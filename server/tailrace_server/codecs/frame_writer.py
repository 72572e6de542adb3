"""Writes protobuf frames by compiled loops, right into their messages.

There are two passes. The first adds up the size of each capture and decides where messages are cut. Then
each message is made as a ``bytes`` object of its size, without content, and the second pass writes the
captures into it. So no byte is copied twice. ``compiled_frames.py`` has both loops.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tailrace_server.codecs import fields
from tailrace_server.codecs.columns import EncodedMessages
from tailrace_server.codecs.frame_table import TABLE_LENGTH, FrameTable
from tailrace_server.machine_code.object_code import CompiledModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from tailrace.criteria import CaptureKind
    from tailrace_server.codecs.columns import CaptureColumns

    Table = tuple[NDArray[np.int32], NDArray[np.uint8]]

FRAME_LOOPS: Final = CompiledModule(
    "tailrace_server.codecs.compiled_frames",
    ("measure", "write"),
    (
        "tailrace_server.codecs.fields",
        "tailrace_server.codecs.frame_table",
        "tailrace_server.numba_tools",
    ),
)
"""The loops, and what their code depends on."""

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
_CONTENTS: Final = bytes.__basicsize__ - 1
"""Bytes from the address of a ``bytes`` object to its content. Its size without content counts a final zero."""
_BYTE, _INT, _LONG = np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64)


class FrameWriter:
    """The compiled encoder; any thread may call it."""

    def __init__(self, loops: Mapping[str, Callable[[int], int]]) -> None:
        """Take the loops of ``FRAME_LOOPS``."""
        self._measure, self._write = loops["measure"], loops["write"]

    def write_messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames of captures in messages of up to ``message_bytes``; entity level only."""
        # 1. Gather what the loops read, as addresses and small tables. `columns` and the locals here keep
        # the memory alive behind the addresses until this function returns.
        count = len(columns)
        rows = np.arange(count, dtype=np.int32) if columns.rows is None else columns.rows
        codes, judged = columns.type_codes, columns.transitions
        types = _entity_type_table(columns.entity_types, columns.kind, judged is not None)
        if judged is not None:
            codes = fields.judged_codes(codes, judged, len(columns.entity_types))
        names = _NO_NAMES if columns.names.all_null else _name_table(columns.names.names)
        # 2. Measure: sizes of captures, places of frames, first frames of messages. The arrays are as long
        # as they can get: a message of each frame.
        sizes = np.empty(count, np.int32)
        offsets = np.empty(count + 1, np.int64)
        starts = np.empty(count + 1, np.int64)
        table = np.zeros(TABLE_LENGTH, np.int64)
        table[: FrameTable.TEXTS] = (
            *(count, message_bytes),
            *(_address(sizes, _INT), _address(offsets, _LONG), _address(starts, _LONG)),
            *(0, 0),
            *(_address(rows, _INT), _address(codes, _INT)),
            *(_address(types[0], _INT), _address(types[1], _BYTE)),
            *((0, 0, 0) if columns.names.all_null else columns.names.addresses),
            *(_address(names[0], _INT), _address(names[1], _BYTE)),
            *(_address(columns.versions, _LONG), _address(columns.indexes, _INT)),
            0 if columns.ordinals is None else _address(columns.ordinals, _INT),
            _address(columns.timestamps, _LONG),
            *(_address(columns.areas, _BYTE), _address(columns.operations, _BYTE)),
        )
        _put_texts(table[FrameTable.TEXTS :].reshape(-1, 4), columns)
        table_address = _address(table, _LONG)
        cut = self._measure(table_address)

        # 3. Make each message at its size. Nobody else has seen these objects, so their content may still
        # be written; a moment later they are immutable like any other.
        starts[cut] = count
        borders = offsets[starts[: cut + 1]]
        data = [*map(_new_bytes, repeat(None), np.diff(borders).tolist())]
        # 4. From each address take off the bytes of the messages before. Then origin + offset is the place
        # of a frame, and the loop needs no offset within a message.
        origins = np.fromiter(map(id, data), np.int64, cut) + (_CONTENTS - borders[:-1])
        # 5. Write. Sizes and places are those of step 2: columns that changed in between would be written
        # beyond a message, and nothing would notice. Columns are immutable.
        table[FrameTable.ORIGINS], table[FrameTable.MESSAGES] = _address(origins, _LONG), cut
        self._write(table_address)
        return EncodedMessages(offsets, starts[: cut + 1].tolist(), data)


def _address(array: NDArray[Any], kind: np.dtype[Any]) -> int:
    """Return where an array lies, one element behind the other."""
    assert array.dtype == kind, (array.dtype, kind)
    return int(pa.py_buffer(array).address)  # refuses what does not lie so


def _put_texts(found: NDArray[np.int64], columns: CaptureColumns) -> None:
    """Put tag and addresses of the key and of each body; tag 0 stays for what is all null or left out."""
    if not columns.keys.all_null:
        found[0] = fields.PRIMARY_KEY, *columns.keys.addresses
    for place, (name, tag) in enumerate(fields.BODIES.items(), 1):
        texts = columns.texts.get(name)
        if texts is not None and not texts.all_null:
            found[place] = tag, *texts.addresses


@lru_cache(maxsize=64)
def _name_table(names: tuple[str, ...]) -> Table:
    """Return the table of changed columns as fields."""
    return _table(map(fields.changed_name, names))


@lru_cache(maxsize=64)
def _entity_type_table(entity_types: tuple[str, ...], kind: CaptureKind, judged: bool) -> Table:
    """Return the table of entity types and the data behind them as fields; the first is of code -1."""
    found = fields.judged_entity_types if judged else fields.entity_types
    return _table(found(entity_types, kind))


def _table(texts: Iterable[bytes]) -> Table:
    listed = list(texts)
    offsets = np.zeros(len(listed) + 1, np.int32)
    np.cumsum([len(text) for text in listed], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(listed), np.uint8)


_NO_NAMES: Final = _table([])
