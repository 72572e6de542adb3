"""Versions in which the image of every removed row is complete, so that a null in an image is a real null.

Many sources send only the key of a removed row, with nulls in the place of the other values. A writer knows if
its source sends complete images, and notes this by entity type among the source positions of a commit::

    removed:orders    1-40,57-      versions 1 to 40, and from 57 on

Only the newest note of an entity type is valid. Without a note this is unknown for every version.
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

_REMOVED: Final = "removed:"
_SPANS_MAX: Final = 64
"""The most spans in a note; older spans are dropped, and their versions are then unknown."""
_OPEN: Final = 1 << 62

Spans = tuple[tuple[int, int], ...]
"""First and last version of each, rising; the last one may have no end."""


class WholeRemovals:
    """The notes of a log. Immutable."""

    def __init__(self, spans: Mapping[str, Spans] | None = None) -> None:
        """Begin with the spans of some entity types, by the names that they have in those versions."""
        self._spans: Mapping[str, Spans] = spans or {}

    def after(self, source_positions: Mapping[str, int | str]) -> WholeRemovals:
        """Return the notes extended by a commit's source positions; the same object without new notes."""
        notes = {
            name.removeprefix(_REMOVED): _read(str(text))
            for name, text in source_positions.items()
            if name.startswith(_REMOVED)
        }
        return WholeRemovals({**self._spans, **notes}) if notes else self

    def notes_after(self, removals: Mapping[str, bool], first_version: int) -> dict[str, int | str]:
        """Return the source positions by which the removals of a commit change the notes.

        Args:
            removals: Entity types with removed rows; True if the image of any of these rows may lack values.
            first_version: The commit's first version.
        """
        found: dict[str, int | str] = {}
        for entity_type, lacking in removals.items():
            spans = self._spans.get(entity_type, ())
            is_open = bool(spans) and spans[-1][1] == _OPEN
            if lacking != is_open:
                continue
            spans = (
                (*spans[:-1], (spans[-1][0], first_version - 1))
                if lacking
                else (*spans, (first_version, _OPEN))
            )
            found[f"{_REMOVED}{entity_type}"] = _written(spans[-_SPANS_MAX:])
        return found

    def of(self, entity_type: str, versions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the versions in which the images of all removed rows are complete.

        Args:
            entity_type: The entity type's name in these versions.
            versions: In any order, shape (n,).
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
    """Return the entity types with removed rows; True if an image of such a row certainly lacks values.

    Args:
        entity_types: Names.
        type_codes: The place in ``entity_types`` of each row's entity type, shape (n,).
        operations: Operation of each row.
        keys: The keys; null for a truncate, which is no removal of a row.
        before: The images of the rows.
    """
    removes = operations == Operation.REMOVE
    if not removes.any():
        return {}
    places = np.flatnonzero(removes & keys.is_valid().to_numpy(zero_copy_only=False))
    images = before.take(pa.array(places))
    lacking = images.is_null()
    for mark in DEFAULT.marks:
        lacking = pc.or_(lacking, pc.match_substring(images, mark).fill_null(False))
    marks, codes = lacking.to_numpy(zero_copy_only=False), type_codes[places]
    return {
        entity_types[code]: bool(marks[codes == code].any()) for code in np.unique(codes).tolist()
    }


def _read(text: str) -> Spans:
    spans = (each.partition("-") for each in text.split(",") if each)
    return tuple((int(first), int(last) if last else _OPEN) for first, _, last in spans)


def _written(spans: Spans) -> str:
    return ",".join(f"{first}-{'' if last == _OPEN else last}" for first, last in spans)
