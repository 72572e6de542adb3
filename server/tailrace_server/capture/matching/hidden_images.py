"""Captures without the images that are outside of the condition that their reader has given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.capture.matching.transitions import (
    hidden_after,
    hidden_before,
    is_veiled_move,
)
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.capture.codecs.columns import CaptureColumns


def without_hidden(columns: CaptureColumns, codes: NDArray[np.uint8]) -> CaptureColumns:
    """Return captures with one record each without what is hidden.

    Args:
        columns: The captures, ``gathered``.
        codes: Of each capture, as of ``transitions``.
    """
    before, after = hidden_before(codes), hidden_after(codes)
    upserts = columns.operations == Operation.UPSERT
    hidden = {
        "before": before,
        "after": after,
        # An update's `change` has values of after. A removal's says how often the row went, or nothing.
        "change": after & upserts,
    }
    texts = {
        name: _without(body, hidden[name]) if hidden[name].any() else body
        for name, body in columns.texts.items()
    }
    names = columns.names
    veiled = is_veiled_move(codes)
    if veiled.any():
        # What a row that enters or leaves changed on the way would tell of the image that is hidden.
        names = NameLists.of(_masked(names.array, veiled))
        if "change" in texts:
            texts["change"] = _without(texts["change"], veiled & upserts)
    return replace(columns, texts=texts, names=names)


def _without(body: Texts, hidden: NDArray[np.bool_]) -> Texts:
    kept = pc.if_else(pa.array(~hidden), body.array, pa.scalar(None, body.array.type))
    return Texts.of(kept)


def _masked(array: pa.ListArray, hidden: NDArray[np.bool_]) -> pa.ListArray:
    places = pa.array(np.arange(len(array)), pa.int64(), mask=hidden)
    return array.take(places)
