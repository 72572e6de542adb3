"""Captures without the images that are outside of the condition that their reader has given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.rows.transitions import hidden_after, hidden_before, is_veiled_move
from tailrace_server.wal.record.text_columns import Texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from tailrace_server.codecs.columns import CaptureColumns
    from tailrace_server.wal.segment.reader import BatchHead


def without_hidden(columns: CaptureColumns, codes: NDArray[np.uint8]) -> CaptureColumns:
    """Return captures with one record each without what is hidden.

    Args:
        columns: The captures, ``gathered``.
        codes: Of each capture, as of ``transitions``.
    """
    hidden = _hidden(columns.operations, codes)
    texts = {
        name: Texts.of(_without(body.array, hidden[name])) if hidden[name].any() else body
        for name, body in columns.texts.items()
    }
    return replace(columns, texts=texts, names=columns.names.without(is_veiled_move(codes)))


def batch_without_hidden(
    head: BatchHead, bodies: Mapping[str, pa.BinaryArray], codes: NDArray[np.uint8]
) -> tuple[BatchHead, Mapping[str, pa.BinaryArray]]:
    """Return a batch without what is hidden, in which a row that leaves is removed.

    Args:
        head: The batch's head.
        bodies: Its bodies.
        codes: Of each record, as of ``transitions``.
    """
    hidden = _hidden(head.operations, codes)
    operations = head.operations.copy()
    operations[hidden_after(codes) & (operations == Operation.UPSERT)] = Operation.REMOVE
    shown = {name: _without(body, hidden[name]) for name, body in bodies.items()}
    return replace(
        head, operations=operations, names=head.names.without(is_veiled_move(codes))
    ), shown


def _hidden(
    operations: NDArray[np.uint8], codes: NDArray[np.uint8]
) -> Mapping[str, NDArray[np.bool_]]:
    """Return by the name of a body in which captures it is hidden."""
    after = hidden_after(codes)
    upserts = operations == Operation.UPSERT
    # An update's `change` has values of after. A removal's says how often the row went, or nothing. What a
    # row that enters or leaves changed on the way would tell of the image that is hidden.
    change = (after | is_veiled_move(codes)) & upserts
    return {"before": hidden_before(codes), "after": after, "change": change}


def _without(body: pa.BinaryArray, hidden: NDArray[np.bool_]) -> pa.BinaryArray:
    return pc.if_else(pa.array(~hidden), body, pa.scalar(None, body.type))
