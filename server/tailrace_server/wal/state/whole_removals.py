"""Versions in which the image of every removed row is complete, so that a null in an image is a real null.

Many sources send only the key of a removed row, and nulls instead of its other values. A writer knows if its
source sends complete images. It notes this for each entity type among the source positions of a commit::

    removed:orders    1-40,57-      versions 1 to 40, and from 57 on

Only the newest note of an entity type is valid. In all other versions an image may be incomplete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace_server.wal.record.mutation import Mutation

_REMOVED: Final = "removed:"
_SPANS_MAX: Final = 64
"""The most ranges of versions in a note. The oldest are dropped; images in their versions may then be
incomplete."""
_OPEN: Final = 1 << 62

Spans = tuple[tuple[int, int], ...]
"""Ranges of versions, ascending: first and last version of each. The last range may be open (``_OPEN``)."""


class WholeRemovals:
    """The newest notes of a log, by entity type. Immutable."""

    def __init__(self, spans: Mapping[str, Spans] | None = None) -> None:
        """Store the ranges of each entity type, by the name that it has in those versions."""
        self._spans: Mapping[str, Spans] = spans or {}

    def after(self, source_positions: Mapping[str, int | str]) -> WholeRemovals:
        """Return the notes after a commit; this object if the commit's source positions have no such notes."""
        notes = {
            name.removeprefix(_REMOVED): _read(str(text))
            for name, text in source_positions.items()
            if name.startswith(_REMOVED)
        }
        return WholeRemovals({**self._spans, **notes}) if notes else self

    def notes_after(self, removals: Mapping[str, bool], first_version: int) -> dict[str, int | str]:
        """Return the notes that a commit has to write, as source positions: those that its removals change.

        Args:
            removals: Entity types with rows that the commit removes; True if any of their images lacks values.
            first_version: The commit's first version.
        """
        found: dict[str, int | str] = {}
        for entity_type, lacking in removals.items():
            spans = self._spans.get(entity_type, ())
            # A note is written only if the state changes: an open range says that images are complete so far.
            is_open = bool(spans) and spans[-1][1] == _OPEN
            if lacking != is_open:
                continue
            # Images that lack values end the open range before this commit; complete ones begin a new range.
            spans = (
                (*spans[:-1], (spans[-1][0], first_version - 1))
                if lacking
                else (*spans, (first_version, _OPEN))
            )
            found[f"{_REMOVED}{entity_type}"] = _written(spans[-_SPANS_MAX:])
        return found

    def of(self, entity_type: str, versions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the versions in which the images of all removed rows are known to be complete.

        Args:
            entity_type: The entity type's name in these versions.
            versions: The versions, in any order, shape (n,).
        """
        found = np.zeros(len(versions), np.bool_)
        for first, last in self._spans.get(entity_type, ()):
            found |= (first <= versions) & (versions <= last)
        return found


def removals_in(
    entity_types: Sequence[str],
    type_codes: NDArray[np.int64],
    operations: NDArray[Any],
    keys: pa.StringArray,
    before: pa.BinaryArray,
) -> dict[str, bool]:
    """Return the entity types with removed rows; True if the image of any such row lacks values.

    Args:
        entity_types: Names of the entity types.
        type_codes: The place in ``entity_types`` of each row's entity type, shape (n,).
        operations: Operation of each row.
        keys: Primary key of each row; null for a truncate, which is ignored here.
        before: Before-image of each row. It lacks values if it is null or contains a mark of a missing value.
    """
    removes = operations == Operation.REMOVE
    if not removes.any():
        return {}
    places = np.flatnonzero(removes & keys.is_valid().to_numpy(zero_copy_only=False))
    images = before.take(pa.array(places))
    lacking = images.is_null()
    # A mark stands for a value that the source did not send.
    for mark in DEFAULT.marks:
        lacking = pc.or_(lacking, pc.match_substring(images, mark).fill_null(False))
    marks, codes = lacking.to_numpy(zero_copy_only=False), type_codes[places]
    return {
        entity_types[code]: bool(marks[codes == code].any()) for code in np.unique(codes).tolist()
    }


def removals_of(mutations: Sequence[Mutation]) -> dict[str, bool]:
    """Return the entity types with removed rows; True if an image of a removed row may lack values."""
    found: dict[str, bool] = {}
    for each in mutations:
        if each.operation == Operation.REMOVE and each.primary_key is not None:
            lacking = each.before is None or DEFAULT.may_be_in(each.before)
            found[each.entity_type] = found.get(each.entity_type, False) or lacking
    return found


def _read(text: str) -> Spans:
    spans = (each.partition("-") for each in text.split(",") if each)
    return tuple((int(first), int(last) if last else _OPEN) for first, _, last in spans)


def _written(spans: Spans) -> str:
    return ",".join(f"{first}-{'' if last == _OPEN else last}" for first, last in spans)
