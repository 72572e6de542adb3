"""Errors of the rows that a program holds: a value, or the file that they are in."""

from __future__ import annotations

from tailrace.errors.tree import TailraceError

_SHOWN_MAX = 40


class ValueNotHeld(TailraceError):
    """Python's type for a column cannot hold a value. The image has it as it was sent; no retry helps."""

    code = "VALUE_NOT_HELD"
    advice = "Read the image, which has the value as it was sent, or declare a type that holds all values."

    def __init__(self, entity_type: str, column: str, label: str, value: str, reason: str) -> None:
        """Keep the column, what it is, the beginning of the value, and why it does not fit."""
        shown = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "…"
        super().__init__(
            f"column {column!r} of {entity_type!r} is {label}, and cannot be read from {shown}: {reason}"
        )
        self.entity_type = entity_type
        self.column = column
        self.label = label
        self.value = shown
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return entity type, column, its type and encoding, the beginning of the value, and why."""
        return {
            "entity_type": self.entity_type,
            "column": self.column,
            "type": self.label,
            "value": self.value,
            "reason": self.reason,
        }


class TableFileError(TailraceError):
    """The file of a live table holds something else, is written by another program, or cannot be used."""

    code = "TABLE_FILE"
    advice = "Do what its text says: name another file, end the other program, make room."

    def __init__(self, path: str, reason: str) -> None:
        """Keep the file, and what is wrong with it."""
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return the file, and what is wrong with it."""
        return {"path": self.path, "reason": self.reason}
