"""Lines that hold several messages, or a key before the message, cut into messages.

Taken are objects one after the other, with or without white space or commas between them; arrays of
objects; and a key, a TAB and a message, as ``kafka-console-consumer`` prints with ``print.key=true``. An
array may also lie over several lines, an object in each; its brackets are lines without content then.

Brackets and strings are distinguished, nothing is parsed. So a message that is damaged costs only itself, as
long as its brackets are balanced, and memory holds one message beside the line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOM: Final = b"\xef\xbb\xbf"
_BETWEEN: Final = b" \t\r\n,"
_HEAD: Final = re.compile(rb"\{|\[\s*(?:[\[{]|null|\]|$)")
"""How a line of several messages begins. A line of a log may begin with a bracket, too."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def messages_in(line: bytes) -> Iterator[bytes] | None:
    """Return the messages of a line and the text between them; None for a line that is not of that kind."""
    text = line.removeprefix(_BOM).strip(_BETWEEN)
    if text == b"]":  # the end of an array that began on a line before
        return iter(())
    if not _HEAD.match(text) or b"\0" in text:
        return None
    return _cut(text)


def _cut(text: bytes) -> Iterator[bytes]:
    in_array = False
    start = end = depth = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in (b"{", b"["):
            if depth:
                depth += 1
                continue
            yield from _rest(text[end : token.start()])
            if sign == b"[" and not in_array:
                in_array, end = True, token.end()
            else:
                start, depth = token.start(), 1
        elif sign in (b"}", b"]"):
            if depth > 1:
                depth -= 1
            elif depth:
                depth, end = 0, token.end()
                yield text[start:end]
            elif sign == b"]" and in_array:
                yield from _rest(text[end : token.start()])
                in_array, end = False, token.end()
    yield from _rest(text[start:] if depth else text[end:])


def _rest(text: bytes) -> Iterator[bytes]:
    """Yield the text between two messages, unless it only divides them."""
    for part in [text] if b'"' in text else text.split(b","):
        if part.strip(_BETWEEN):
            yield part.strip(_BETWEEN)


def key_and_value(line: bytes) -> tuple[bytes, bytes] | None:
    """Return key and message of a line that has a TAB between them; None for any other line.

    A raw TAB is never within a string of JSON, so the first one divides.
    """
    key, tab, value = line.partition(b"\t")
    if not tab or value.strip()[:1] not in (b"{", b"n"):
        return None
    try:
        orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return key.strip(), value.strip()
