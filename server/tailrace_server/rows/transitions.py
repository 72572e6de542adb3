"""Transitions: codes that say if a change makes its row enter a condition, stay in it or leave it.

"In" means that an image meets the condition, "out" that it does not; "?" means that this is unknown.

======  =====  =======  ====================================================================
before  after  code     visible
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

So an image that certainly does not meet the condition is never visible. Nothing is lost if a source does not
send images before: a reader that adds rows with ENTER, and removes rows with LEAVE or UNKNOWN, has exactly the
rows that certainly meet the condition. With a grant's condition, only images that certainly meet it are
visible.
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
"""Code of a capture without a condition, and of a record that does not match."""
TRANSITION_BITS: Final = 7
"""Mask of the bits of a code that hold the ``Transition``."""
UNSURE: Final = 8
"""Bit of a code: it is unknown whether the image before met the condition."""
VEILED: Final = 16
"""Bit of a code: the condition is a grant's, so the reader must not see images that do not meet it."""

WAS_IN: Final = 1
"""Bit of an evaluation: the image before meets the condition."""
MAY_HAVE_BEEN: Final = 2
"""Bit of an evaluation: the row existed before, and it is unknown whether it met the condition."""
IS_IN: Final = 4
"""Bit of an evaluation: the image after meets the condition."""
MAY_BE_IN: Final = 8
"""Bit of an evaluation: it is unknown whether the image after meets the condition."""


class RowsFound(NamedTuple):
    """Rows of a ``TypedImages`` that a lookup has found, with what is known of each."""

    places: NDArray[np.intp]
    """Indexes into ``TypedImages.rows``, rising and distinct."""
    bits: NDArray[np.uint8]
    """For each row, the bits of the evaluation that are known."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageVerdict:
    """The results of a condition for the images of some rows, as masks of the rows."""

    was_in: NDArray[np.bool_]
    """The image before meets the condition."""
    may_have_been: NDArray[np.bool_]
    """The row existed before, and it is unknown whether it met the condition."""
    is_in: NDArray[np.bool_]
    """The image after meets the condition."""
    may_be_in: NDArray[np.bool_]
    """It is unknown whether the image after meets the condition."""

    def only(self, rows: NDArray[np.bool_]) -> ImageVerdict:
        """Return the results with all rows outside of the mask ``rows`` set to "out", before and after."""
        return ImageVerdict(
            self.was_in & rows, self.may_have_been & rows, self.is_in & rows, self.may_be_in & rows
        )

    @property
    def is_match(self) -> NDArray[np.bool_]:
        """Mask of the rows that get a code other than 0."""
        return self.was_in | self.may_have_been | self.is_in | self.may_be_in

    @property
    def bits(self) -> NDArray[np.uint8]:
        """The results as one number for each row, a sum of ``WAS_IN`` and the other bits."""
        bits: NDArray[np.uint8] = self.was_in * np.uint8(WAS_IN)
        bits |= self.may_have_been * np.uint8(MAY_HAVE_BEEN)
        bits |= self.is_in * np.uint8(IS_IN)
        bits |= self.may_be_in * np.uint8(MAY_BE_IN)
        return bits


def codes_of(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the code of each row from the bits of its evaluation, such as ``WAS_IN``."""
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
"""The code for each combination of the evaluation's bits; the index is the sum of the bits."""


def is_move(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the captures whose row enters, leaves, or may do so (UNKNOWN)."""
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
    """Return True if a capture has a transition and is veiled: its hidden image is not granted."""
    return bool(code & VEILED) and code & TRANSITION_BITS == transition


def is_unknown(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the captures with the transition UNKNOWN."""
    found: NDArray[np.bool_] = codes & TRANSITION_BITS == Transition.UNKNOWN
    return found


def hidden_before(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the captures whose image before does not, or may not, meet the condition."""
    found: NDArray[np.bool_] = codes & TRANSITION_BITS == Transition.ENTER
    found |= codes & UNSURE != 0
    return found


def hidden_after(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the captures whose image after does not meet the condition."""
    found: NDArray[np.bool_] = codes & TRANSITION_BITS == Transition.LEAVE
    return found


def without_hidden(columns: CaptureColumns, codes: NDArray[np.uint8]) -> CaptureColumns:
    """Return captures of whole records without the images and changed columns that are hidden.

    Args:
        columns: The captures, ``gathered``.
        codes: The code of each capture.
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
    """Return a batch without the images and changed columns that are hidden; a row that leaves is a removal.

    Args:
        head: The batch's head.
        bodies: The batch's bodies.
        codes: The code of each record.
    """
    hidden = _hidden(head.operations, codes)
    operations = head.operations.copy()
    # To the reader, an update whose image after is hidden is a removal.
    operations[hidden_after(codes) & (operations == Operation.UPSERT)] = Operation.REMOVE
    shown = {name: _without(body, hidden[name]) for name, body in bodies.items()}
    return replace(
        head, operations=operations, names=head.names.without(is_veiled_move(codes))
    ), shown


def _hidden(
    operations: NDArray[np.uint8], codes: NDArray[np.uint8]
) -> Mapping[str, NDArray[np.bool_]]:
    """Return name of a body → mask of the captures in which it is hidden."""
    after = hidden_after(codes)
    upserts = operations == Operation.UPSERT
    # The `change` of an update has values of the image after, so it is hidden together with that image. The
    # `change` of a veiled move would reveal how the hidden image differs. A removal's `change` has no values
    # of the row, at most a count, so it stays.
    change = (after | is_veiled_move(codes)) & upserts
    return {"before": hidden_before(codes), "after": after, "change": change}


def _without(body: pa.BinaryArray, hidden: NDArray[np.bool_]) -> pa.BinaryArray:
    return pc.if_else(pa.array(~hidden), body, pa.scalar(None, body.type))
