"""The columns of a key, from its text: what a record without images still knows of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import orjson
import pyarrow as pa

from tailrace_server.typed.forms import form_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.schema import Column
    from tailrace_server.typed.forms import Form

_EMPTY: Final = b"{}"
_decode_parts: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def key_images(keys: pa.StringArray, written: Sequence[Column]) -> pa.BinaryArray:
    """Return images of rows that have the columns of their keys alone.

    Args:
        keys: Texts of keys: of one column its plain text, of several a JSON array; null gives an empty image.
        written: The entity type's columns, as the version of the keys has them.

    Raises:
        ValueError: A text is not of that form.
    """
    columns = sorted((each for each in written if each.key), key=lambda each: each.key)
    texts = keys.to_pylist()
    if not columns:
        return pa.array([_EMPTY] * len(texts), pa.binary())
    if len(columns) == 1:
        name, form = orjson.dumps(columns[0].name), form_of(columns[0])
        found = [
            _EMPTY if text is None else b"{%b:%b}" % (name, _value(form, text)) for text in texts
        ]
        return pa.array(found, pa.binary())
    names = [each.name for each in columns]
    return pa.array(
        [_EMPTY if text is None else _image(names, text) for text in texts], pa.binary()
    )


def _value(form: Form, text: str) -> bytes:
    """Return the JSON of a key's only column: the text of a string has lost its quotes."""
    raw = text.encode()
    if raw[:1] != b'"':
        try:
            orjson.loads(raw)
            form.decode(raw)
        except ValueError:  # a misfit is one too
            pass
        else:
            return raw
    return orjson.dumps(text)


def _image(names: Sequence[str], text: str) -> bytes:
    try:
        values = _decode_parts(text)
    except msgspec.DecodeError:
        values = []
    if len(values) != len(names):
        raise ValueError(f"the key {text[:80]!r} is no JSON array of {', '.join(names)}")
    return msgspec.json.encode(dict(zip(names, values, strict=True)))
