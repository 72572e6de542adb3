"""How a change moves its row into a condition, within it or out of it, as codes of columns.

======  =====  =======  ====================================================================
before  after  code     shown
======  =====  =======  ====================================================================
out     in     ENTER    key, ``after``, ``change``
in      in     UPDATE   everything
in      out    LEAVE    key, ``before``; also of a removal
?       in     ENTER    as above; it may have been in already
?       out    LEAVE    key; it may never have been in
in      ?      UNKNOWN  everything
other   ?      UNKNOWN  key, ``after``, ``change``
out     out             nothing: the record is no match
======  =====  =======  ====================================================================

So no image that is certainly outside of the condition is shown, and nothing is lost where a source does not say
what was before: a reader who adds what enters, and removes what leaves or is unknown, has the rows that are
certainly in. Of what a grant's condition does not certainly give nothing is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation, Transition
from tailrace_server.wal.record.text_columns import Texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tailrace_server.codecs.columns import CaptureColumns
    from tailrace_server.wal.segment.reader import BatchHead

NONE: Final = 0
"""The code of a capture without a condition, and of a record that does not match."""
TRANSITION_BITS: Final = 7
"""The bits of a code that are the `Transition`."""
UNSURE: Final = 8
"""It is not certain that the row was in."""
VEILED: Final = 16
"""The reader does not see rows outside, as they are not granted."""

WAS_IN: Final = 1
"""A bit: the image before meets the condition."""
MAY_HAVE_BEEN: Final = 2
"""A bit: it is unknown whether it does, and there was a row."""
IS_IN: Final = 4
"""A bit: the image after meets the condition."""
MAY_BE_IN: Final = 8
"""A bit: the condition is undecided for the image after."""


class RowsFound(NamedTuple):
    """Some rows, each once and rising, as places among those of a `TypedImages`."""

    places: NDArray[np.intp]
    bits: NDArray[np.uint8]
    """The bits of each row that are known."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageVerdict:
    """The results of a condition for the images of some rows; a boolean for each row."""

    was_in: NDArray[np.bool_]
    """The image before meets the condition."""
    may_have_been: NDArray[np.bool_]
    """It is unknown whether it did, and there was a row."""
    is_in: NDArray[np.bool_]
    """The image after meets the condition."""
    may_be_in: NDArray[np.bool_]
    """The condition is undecided for the image after."""

    def only(self, rows: NDArray[np.bool_]) -> ImageVerdict:
        """Return the same where others than some rows are out, before and after."""
        return ImageVerdict(
            self.was_in & rows, self.may_have_been & rows, self.is_in & rows, self.may_be_in & rows
        )

    @property
    def is_match(self) -> NDArray[np.bool_]:
        """Which rows have a code."""
        return self.was_in | self.may_have_been | self.is_in | self.may_be_in

    @property
    def bits(self) -> NDArray[np.uint8]:
        """The same as bits of one number."""
        bits: NDArray[np.uint8] = self.was_in * np.uint8(WAS_IN)
        bits |= self.may_have_been * np.uint8(MAY_HAVE_BEEN)
        bits |= self.is_in * np.uint8(IS_IN)
        bits |= self.may_be_in * np.uint8(MAY_BE_IN)
        return bits


def codes_of(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the code of each row; its bits say what is known."""
    codes: NDArray[np.uint8] = _CODES[bits]
    return codes


_UNKNOWN: Final = Transition.UNKNOWN | UNSURE
_CODES: Final = np.array(
    [
        *(NONE, Transition.LEAVE, Transition.LEAVE | UNSURE, Transition.LEAVE),
        *(Transition.ENTER, Transition.UPDATE, Transition.ENTER | UNSURE, Transition.UPDATE),
        *(_UNKNOWN, Transition.UNKNOWN, _UNKNOWN, Transition.UNKNOWN),
        *(Transition.ENTER, Transition.UPDATE, Transition.ENTER | UNSURE, Transition.UPDATE),
    ],
    np.uint8,
)
"""By bits."""


def is_move(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which captures enter or leave."""
    transitions = codes & TRANSITION_BITS
    found: NDArray[np.bool_] = transitions != NONE
    found &= transitions != Transition.UPDATE
    return found


def is_veiled_move(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of captures that must hide their changed columns: one of their images is not granted."""
    found: NDArray[np.bool_] = codes & VEILED != 0
    found &= codes & TRANSITION_BITS != Transition.UPDATE
    return found


def is_veiled(code: int, transition: Transition) -> bool:
    """Return whether a capture is such a move, of an image that is not granted."""
    return bool(code & VEILED) and code & TRANSITION_BITS == transition


def is_unknown(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the captures whose row may be in or not."""
    found: NDArray[np.bool_] = codes & TRANSITION_BITS == Transition.UNKNOWN
    return found


def hidden_before(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the captures whose image before does not meet the condition, or may not."""
    found: NDArray[np.bool_] = codes & TRANSITION_BITS == Transition.ENTER
    found |= codes & UNSURE != 0
    return found


def hidden_after(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the captures whose image after does not meet the condition."""
    found: NDArray[np.bool_] = codes & TRANSITION_BITS == Transition.LEAVE
    return found


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
