"""The images of an entity type, as rows of Python values."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ValueNotHeld
from tailrace.typed.not_sent import NotSent
from tailrace.typed.values import (
    BeyondDecimal,
    NotHeld,
    convert_of,
    label_of,
    parsed,
    refuse_beyond,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.schema import Column

_SHOWN_MAX: Final = 200


class RowReader:
    """Reads images by the columns of an entity type as of one version."""

    __slots__ = ("_converts", "_not_sent", "columns", "entity_type", "placeholders")

    def __init__(
        self, entity_type: str, columns: Iterable[Column], placeholders: Iterable[str] = ()
    ) -> None:
        """Prepare the readers of each column's values, and the placeholders of values that were not sent."""
        self.entity_type = entity_type
        self.columns = (*columns,)
        self.placeholders = (*placeholders,)
        self._converts: dict[str, tuple[Callable[[Any], object], str]] = {}
        for column in self.columns:
            if (convert := convert_of(column)) is not None:
                self._converts[column.name] = convert, label_of(column)
        self._not_sent = NotSent(self.placeholders)

    def read(self, image: bytes) -> dict[str, Any]:
        """Return a row, in the order of the image: a null is None, a value that was not sent is missing.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value.
        """
        row, has_beyond = _members(self.entity_type, image)
        if self._not_sent.may_be_in(image):
            row = {name: value for name, value in row.items() if not self._not_sent.is_one(value)}
        for name, (convert, label) in self._converts.items():
            value = row.get(name)
            if value is None:
                continue
            try:
                row[name] = convert(value)
            except NotHeld as misfit:
                text = _shown(value)
                raise ValueNotHeld(self.entity_type, name, label, text, str(misfit)) from None
        if has_beyond:
            _refuse_beyond(self.entity_type, row)
        return row


def untyped_row(entity_type: str, image: bytes) -> dict[str, Any]:
    """Return the row of an image with the values that JSON has: a Decimal for each number that is no int.

    Raises:
        ValueNotHeld: The exponent of a number is too large for Decimal, or the values nest too deeply.
    """
    row, has_beyond = _members(entity_type, image)
    if has_beyond:
        _refuse_beyond(entity_type, row)
    return row


def _members(entity_type: str, image: bytes) -> tuple[dict[str, Any], bool]:
    """Parse an image; return also whether a `BeyondDecimal` is in it."""
    try:
        return parsed(str(image, "utf-8"))
    except (ValueError, RecursionError) as error:
        text = image[:_SHOWN_MAX].decode(errors="replace")
        raise ValueNotHeld(entity_type, "", "a JSON object", text, str(error)) from None


def _refuse_beyond(entity_type: str, row: dict[str, Any]) -> None:
    for name, value in row.items():
        try:
            refuse_beyond(value)
        except NotHeld as misfit:
            raise ValueNotHeld(entity_type, name, "JSON", _shown(value), str(misfit)) from None


def _shown(value: object) -> str:
    if isinstance(value, Decimal | BeyondDecimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
