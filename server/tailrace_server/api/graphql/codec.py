r"""Codec of a compiled selection: encodes captures in columns as payloads of ``next`` messages.

::

    {"data":{"onProductChange":{"version":42,"cursor":"1.….42.1.0.17…","after":{"id":"17","price":"9.90"}}}}\x1e

The selection becomes one bytes template with a placeholder for each value. A frame is the filled template and a
record separator as in RFC 7464. No JSON text contains that byte, so joined frames can be split again. A frame
contains nothing of one subscription, so all subscriptions with an equal selection share the same bytes.

For event streams the same payloads are framed as server-sent events, with cursors as ids::

    id: 1.….42.1.0.17…\nevent: next\ndata: {"data":{…}}\n\n

If the scalar of a field cannot represent a value, the value is null and ``errors`` has an error with its path,
as the GraphQL specification requires.
"""

from __future__ import annotations

import hashlib
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, ContainerType, Operation, Transition
from tailrace_server.api.graphql.catalog_schema import columns_by_name, row_of, unavailable_in
from tailrace_server.api.graphql.errors import ValueUnfit, omitted
from tailrace_server.api.graphql.selection import (
    BodyField,
    ColumnField,
    HeadField,
    RowField,
    TypeName,
)
from tailrace_server.api.graphql.types import TOLD_FROM, UNAVAILABLE
from tailrace_server.api.rest.forms import on_one_line
from tailrace_server.codecs.columns import EMPTY, Codec, encode_name_lists
from tailrace_server.codecs.json import cursor_parts
from tailrace_server.rows.transitions import NONE, TRANSITION_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.schema import Schema
    from tailrace_server.api.graphql.selection import Member, SelectionSet
    from tailrace_server.codecs.columns import CaptureColumns

SEPARATOR: Final = b"\x1e"
DATA: Final = b"\ndata: "
"""The start of an event's data line, before the payload."""
EVENT_END: Final = b"\n\n"
_encode: Final = msgspec.json.encode
_NULL: Final = b"null"
_LAST: Final = 2**31 - 1
"""End of a slice that extends to the end of every frame."""

_AREAS: Final = {each.value: _encode(each.name) for each in Area}
_OPERATIONS: Final = {each.value: _encode(each.name) for each in Operation}
_CONTAINER_TYPES: Final = {0: _NULL, **{each.value: _encode(each.name) for each in ContainerType}}

_TRANSITIONS: Final = {NONE: _NULL, **{each.value: _encode(each.name) for each in Transition}}

_SCHEMAS_MAX: Final = 64
"""Number of log schemas for which one selection caches its readers; above it the cache is cleared."""

_Errors = dict[int, list[dict[str, Any]]]
"""Errors by place of the capture in its batch."""


class SelectionCodec(Codec):
    """The codec of one selection; its frame is a payload and a record separator."""

    def __init__(self, selection: SelectionSet) -> None:
        """Compile a selection to a template and readers of rows."""
        self.name = f"graphql-{hashlib.blake2s(selection.identity.encode()).hexdigest()}"
        self._key = selection.key
        self._members = [each for each in selection.members if not isinstance(each, TypeName)]
        self._template = _template(selection)
        self._readers = {
            each.key: _RowReader(each) for each in self._members if isinstance(each, RowField)
        }

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one payload with a separator for each capture."""
        columns = columns.gathered()
        errors: _Errors = {}
        # Work column by column, then fill the template row by row.
        values = [self._values(each, columns, errors) for each in self._members]
        template = self._template
        if values:
            frames = [template % row for row in zip(*values, strict=True)]
        else:
            frames = [template % ()] * len(columns)
        # The template has no place for errors, which are rare: insert them before the closing brace.
        for place, faults in errors.items():
            frames[place] = b'%b,"errors":%b}%b' % (
                frames[place][: -len(SEPARATOR) - 1],
                _encode(faults),
                SEPARATOR,
            )
        return pa.array(frames, pa.binary())

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the payload of a capture without bodies.

        It has the size of the omitted bodies if selected, and an error for each selected body.
        """
        # Such captures are rare, so decoding and encoding the payload is acceptable here.
        payload = msgspec.json.decode(header_frame[: -len(SEPARATOR)])
        faults = []
        for each in self._members:
            match each:
                case HeadField(key, "omittedBytes"):
                    payload["data"][self._key][key] = omitted_bytes
                case BodyField(key) | RowField(key):
                    faults.append(omitted(omitted_bytes).as_error((self._key, key)))
        if faults:
            payload["errors"] = faults
        return _encode(payload) + SEPARATOR

    def _values(
        self, member: Member, columns: CaptureColumns, errors: _Errors
    ) -> Sequence[bytes | int]:
        match member:
            case HeadField(_, field):
                return _HEADS[field](columns)
            case BodyField(_, body, as_text):
                return _bodies(columns, body, as_text=as_text)
            case RowField(key):
                return _rows(columns, self._readers[key], (self._key, key), errors)
            case TypeName():
                raise AssertionError("part of the template")


class SelectionEventsCodec(Codec):
    """The codec of one selection for event streams; its frame is one server-sent event with the payload."""

    def __init__(self, payloads: SelectionCodec) -> None:
        """Frame the payloads of the codec ``payloads``."""
        self.name = f"{payloads.name}-events"
        self._payloads = payloads

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one event for each capture, with the cursor as its id."""
        columns = columns.gathered()
        payloads = on_one_line(self._payloads.encode(columns))
        ended = pc.binary_replace_slice(payloads, -len(SEPARATOR), _LAST, EVENT_END)
        parts = (_text(b"id: "), *cursor_parts(columns), _text(b"\nevent: next" + DATA), ended)
        return pc.binary_join_element_wise(*parts, EMPTY)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the event of a capture without bodies (see `SelectionCodec.with_omitted`)."""
        head, _, payload = header_frame.partition(DATA)
        frame = payload[: -len(EVENT_END)] + SEPARATOR
        shown = self._payloads.with_omitted(frame, omitted_bytes)[: -len(SEPARATOR)]
        return b"%b%b%b%b" % (head, DATA, shown, EVENT_END)


def _text(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _template(selection: SelectionSet) -> bytes:
    members = b",".join(map(_place, selection.members))
    return b'{"data":{%b:{%b}}}%b' % (_key(selection.key), members, SEPARATOR)


def _place(member: Member | ColumnField) -> bytes:
    """Return the part of a template for one member."""
    if isinstance(member, TypeName):
        return b"%b:%b" % (_key(member.key), _encode(member.name))
    return b"%b:%b" % (_key(member.key), b"%b")


def _key(name: str) -> bytes:
    # A GraphQL name contains nothing to escape in JSON, and no percent sign for the template.
    return b'"%b"' % name.encode()


def _digits(numbers: Any) -> list[bytes]:
    return [b"%d" % number for number in numbers.tolist()]


def _ordinals(columns: CaptureColumns) -> list[bytes]:
    if columns.ordinals is None:
        return [b"0"] * len(columns)
    return _digits(columns.ordinals)


def _cursors(columns: CaptureColumns) -> list[bytes]:
    # The batch has cursors of its own if they are not those of the captures' places in the log.
    if columns.cursors is not None:
        return [b'"%b"' % cursor for cursor in columns.cursors().to_pylist()]
    # Only the numbers differ within a batch: put the catalog into the pattern once.
    cursor = b'"1.%b.%%d.%%d.%%d.%%d"' % columns.catalog_uuid.hex.encode()
    zeros = np.zeros(len(columns), np.int32)
    ordinals = zeros if columns.ordinals is None else columns.ordinals
    numbers = (columns.versions, columns.indexes, ordinals, columns.timestamps)
    places = zip(*(each.tolist() for each in numbers), strict=True)
    return [cursor % place for place in places]


def _entity_types(columns: CaptureColumns) -> list[bytes]:
    names = [
        *map(_encode, columns.entity_types),
        _NULL,
    ]  # A lead record has the code -1: the last name.
    return [names[code] for code in columns.type_codes.tolist()]


def _changed(columns: CaptureColumns) -> list[bytes]:
    encoded: list[bytes] = encode_name_lists(columns.names, _encode).to_pylist()
    return encoded


def _transitions(columns: CaptureColumns) -> list[bytes]:
    if columns.transitions is None:
        return [_NULL] * len(columns)
    return [_TRANSITIONS[code & TRANSITION_BITS] for code in columns.transitions.tolist()]


def _container_types(columns: CaptureColumns) -> list[bytes]:
    if columns.container_types is None:
        return [_NULL] * len(columns)
    return [_CONTAINER_TYPES[kind] for kind in columns.container_types.tolist()]


def _container_names(columns: CaptureColumns) -> list[bytes]:
    if columns.container_types is None or columns.container_names is None:
        return [_NULL] * len(columns)
    pairs = zip(columns.container_types.tolist(), columns.container_names, strict=True)
    return [_encode(name) if kind else _NULL for kind, name in pairs]


def _unavailable(columns: CaptureColumns) -> list[bytes]:
    schema_of = columns.schema_of
    images = zip(*(_images(columns, body) for body in TOLD_FROM), strict=True)
    pairs = zip(images, columns.versions.tolist(), strict=True)
    return [_encode(unavailable_in(each, schema_of(version))) for each, version in pairs]


_HEADS: Final[dict[str, Callable[[CaptureColumns], list[bytes]]]] = {
    "version": lambda columns: _digits(columns.versions),
    "index": lambda columns: _digits(columns.indexes),
    "ordinal": _ordinals,
    "cursor": _cursors,
    "commitTimestamp": lambda columns: _digits(columns.timestamps),
    "area": lambda columns: [_AREAS[area] for area in columns.areas.tolist()],
    "kind": lambda columns: [_encode(columns.kind.name)] * len(columns),
    "transition": _transitions,
    "operation": lambda columns: [_OPERATIONS[kind] for kind in columns.operations.tolist()],
    "entityType": _entity_types,
    "primaryKey": lambda columns: list(map(_encode, columns.keys.array.to_pylist())),
    "changed": _changed,
    "containerType": _container_types,
    "containerName": _container_names,
    "omittedBytes": lambda columns: [b"0"] * len(columns),
    UNAVAILABLE: _unavailable,
}


def _images(columns: CaptureColumns, body: str) -> Iterable[bytes | None]:
    found = columns.body(body)
    return [None] * len(columns) if found is None else found.to_pylist()


def _bodies(columns: CaptureColumns, body: str, *, as_text: bool) -> list[bytes]:
    if as_text:
        return [
            _NULL if image is None else _encode(image.decode()) for image in _images(columns, body)
        ]
    # An image is JSON text, so it can be inserted into the payload as it is.
    return [_NULL if image is None else image for image in _images(columns, body)]


_Cell = tuple[str, tuple[tuple[str, "Callable[[bytes], bytes]"], ...]]
"""Response key of a column; and for each of the column's names, the function that converts its JSON text."""


class _RowReader:
    """Reader of the rows of one field; each row is read by the schema of its version."""

    def __init__(self, row: RowField) -> None:
        self.body = row.body
        self.template = b"{%b}" % b",".join(map(_place, row.cells))
        self._entity_type = row.entity_type
        self._cells = [each for each in row.cells if isinstance(each, ColumnField)]
        self._by_schema: dict[int, tuple[Schema, list[_Cell]]] = {}

    def cells(self, schema: Schema) -> list[_Cell]:
        """Return the cells that read the columns of images written with a schema; cached by schema."""
        found = self._by_schema.get(schema.id)
        # The id alone does not identify a schema: it counts within one log.
        if found is None or found[0] is not schema:
            if len(self._by_schema) >= _SCHEMAS_MAX:
                self._by_schema.clear()
            columns = columns_by_name(schema, self._entity_type)
            cells: list[_Cell] = [
                (
                    each.key,
                    tuple(
                        (name, each.reading.of(columns.get(name)))
                        for name in each.names
                        if each.reading.is_of(columns.get(name))
                    ),
                )
                for each in self._cells
            ]
            found = self._by_schema[schema.id] = schema, cells
        return found[1]


def _cells_of_rows(columns: CaptureColumns, reader: _RowReader) -> Iterable[list[_Cell]]:
    """Return the cells for the row of each capture."""
    versions, schema_of = columns.versions, columns.schema_of
    if not len(versions):
        return ()
    first, last = schema_of(int(versions.min())), schema_of(int(versions.max()))
    # Nearly always all versions of a batch have the same schema.
    if first is last:
        return repeat(reader.cells(first), len(versions))
    return [reader.cells(schema_of(version)) for version in versions.tolist()]


def _rows(
    columns: CaptureColumns, reader: _RowReader, path: tuple[str, ...], errors: _Errors
) -> list[bytes]:
    out = []
    pairs = zip(_images(columns, reader.body), _cells_of_rows(columns, reader), strict=True)
    for place, (image, cells) in enumerate(pairs):
        if image is None:
            out.append(_NULL)
            continue
        # A bad image or value makes one field null, and adds an error. The rest of the capture is delivered.
        try:
            found = row_of(image)
        except ValueUnfit as error:
            errors.setdefault(place, []).append(error.as_error(path))
            out.append(_NULL)
            continue
        values = []
        for key, names in cells:
            # The newest name that the image contains is the column's value, even if that is null.
            text = _NULL
            for name, read in names:
                raw = found.get(name)
                if raw is None:
                    continue
                text = bytes(raw)
                if text != _NULL:
                    try:
                        text = read(text)
                    except ValueUnfit as error:
                        errors.setdefault(place, []).append(error.as_error((*path, key)))
                        text = _NULL
                break
            values.append(text)
        out.append(reader.template % tuple(values))
    return out
