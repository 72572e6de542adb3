"""Values of decoded JSON: a text among them, and how errors show any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.errors import InvalidRequest

_SHOWN: Final = 60


def checked_text(value: object, path: str) -> str:
    """Return a value that has to be a text.

    Args:
        value: The value.
        path: Of the value, for errors.

    Raises:
        InvalidRequest: It is none, or none that UTF-8 can hold.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"{path}: must be a text, not {shown_value(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{path}: not a text that UTF-8 can hold") from None
    return value


def shown_value(value: object) -> str:
    """Return what an error says of a value, in 60 characters at most; of objects and lists what they are."""
    if isinstance(value, Mapping | list):
        return "an object" if isinstance(value, Mapping) else "a list"
    text = repr(value) if not isinstance(value, bool | type(None)) else str(value).lower()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
