r"""The forms in which the REST face writes captures, and the codecs of these forms.

::

    format   captures        captures as in docs/rest.md; the default
             cloudevents     CloudEvents, each with a capture as its data
    bodies   json            JSON objects, inserted byte for byte; the default
             text            strings with the same bytes: every parser preserves them exactly
    values   raw             values as the source wrote them; the default
             decoded         values decoded by the column's type and encoding (wal/schema/decoding.py)

All three are members of a JSON request, or parameters of a URL. gRPC has only ``values``, because its bodies
are bytes.

A CloudEvent 1.0 in structured form has the capture as its data::

    {"specversion":"1.0","id":"1.….42.2.0.17…","source":"urn:uuid:6f1c2a5e-…","type":"tailrace.data.upsert",
     "subject":"product/17","time":"2023-11-14T22:13:20.000000Z","datacontenttype":"application/json",
     "data":{"version":42,"index":2,"ordinal":0,"cursor":"1.….42.2.0.17…",…}}

The ``source`` is the uuid of the catalog's log. The ``id`` is the capture's cursor, so source and id together
are unique, as the specification requires, and a client can resume from any id. The ``type`` contains area and
operation. The ``subject`` is entity type and primary key; the lead record of a transaction has no subject. The
``time`` is the commit time. A frame is the JSON object, followed by a comma.

Source: CloudEvents 1.0.2, core specification and JSON event format.

Formats in which each capture is separate have other frames::

    lines    {"version":42,…}\n
    events   id: 1.….42.2.0.17…\ndata: {"version":42,…}\n\n

These frames are derived from the frames of an object codec, in columns, once for all readers of a format. An
image that contains line ends is put on one line: JSON allows line ends only between tokens, so replacing them
by spaces changes no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest, Unsupported
from tailrace_server.codecs import JSON, JSON_DECODED, JSON_TEXT, JSON_TEXT_DECODED, Codec
from tailrace_server.codecs.columns import EMPTY
from tailrace_server.codecs.json import cursor_parts, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tailrace_server.codecs import CaptureColumns


_encode = msgspec.json.encode


_END: Final = 2**31 - 1
"""End of a slice that extends to the end of every value."""


FORMATS: Final = ("captures", "cloudevents")
BODIES: Final = ("json", "text")
VALUES: Final = ("raw", "decoded")
_BODY_NAMES: Final = ("change", "before", "after")


_OBJECTS: Final[dict[tuple[str, str], Codec]] = {
    ("json", "raw"): JSON,
    ("json", "decoded"): JSON_DECODED,
    ("text", "raw"): JSON_TEXT,
    ("text", "decoded"): JSON_TEXT_DECODED,
}
_MEMBERS: Final = ("format", "bodies", "values")


class LinesCodec(Codec):
    """Codec whose frame is one JSON object and a line end."""

    def __init__(self, objects: Codec) -> None:
        """Derive from ``objects``, a codec whose frames are a JSON object and a comma."""
        self.name = f"{objects.name}-lines"
        self._objects = objects

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one line for each capture."""
        # Replace the comma that ends each frame of `_objects`.
        return pc.binary_replace_slice(on_one_line(self._objects.encode(columns)), -1, _END, b"\n")

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return a frame without bodies, with ``omittedBytes`` appended to its object."""
        # The object codec expects and returns a comma at the end of a frame.
        return self._objects.with_omitted(header_frame[:-1] + b",", omitted_bytes)[:-1] + b"\n"


class EventsCodec(Codec):
    """Codec whose frame is one server-sent event; its id is the capture's cursor."""

    def __init__(self, objects: Codec) -> None:
        """Derive from ``objects``, a codec whose frames are a JSON object and a comma."""
        self.name = f"{objects.name}-events"
        self._objects = objects

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one server-sent event for each capture."""
        objects = pc.binary_replace_slice(
            on_one_line(self._objects.encode(columns)), -1, _END, b"\n\n"
        )
        return pc.binary_join_element_wise(
            *(pa.scalar(b"id: ", pa.binary()), *cursor_parts(columns)),
            *(pa.scalar(b"\ndata: ", pa.binary()), objects, EMPTY),
        )

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return an event without bodies, with ``omittedBytes`` appended to its object."""
        return self._objects.with_omitted(header_frame[:-2] + b",", omitted_bytes)[:-1] + b"\n\n"


def on_one_line(frames: pa.BinaryArray) -> pa.BinaryArray:
    """Return frames of JSON with line ends replaced by spaces."""
    # Nearly all images are on one line, and a search is cheaper than a copy.
    for end in (b"\n", b"\r"):
        if pc.any(pc.match_substring(frames, end)).as_py():
            frames = pc.replace_substring(frames, end, b" ")
    return frames


class CloudEventsCodec(Codec):
    """Codec whose frame is one CloudEvent and a comma."""

    def __init__(self, objects: Codec) -> None:
        """Derive from ``objects``, a codec whose frames are a JSON object and a comma."""
        self.name = f"{objects.name}-cloudevents"
        self._objects = objects

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one CloudEvent for each capture."""
        # The columns are used several times below: gather them once.
        columns = columns.gathered()
        uuid = columns.catalog_uuid
        data = pc.binary_replace_slice(self._objects.encode(columns), -1, _END, b"},")
        return pc.binary_join_element_wise(
            *(_text(b'{"specversion":"1.0","id":"'), *cursor_parts(columns)),
            *(_text(b'","source":"urn:uuid:%s"' % str(uuid).encode()), _kinds(columns)),
            *(_text(b',"time":"'), _times(columns.timestamps)),
            *(_text(b'Z","datacontenttype":"application/json","data":'), data, EMPTY),
        )

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return a CloudEvent without bodies, with ``omittedBytes`` appended to its data."""
        return self._objects.with_omitted(header_frame[:-2] + b",", omitted_bytes)[:-1] + b"},"


def _kinds(columns: CaptureColumns) -> pa.BinaryArray:
    """Return the encoded members ``type`` and ``subject`` of each capture."""
    # Few combinations of entity type, area and operation occur: encode each once, then take it by row.
    # One number holds the three codes; an entity type's code is -1 for a lead record, so 1 is added.
    codes = (columns.type_codes.astype(np.int64) + 1) * 64 + columns.areas * 8 + columns.operations
    distinct, place = np.unique(codes, return_inverse=True)
    texts = []
    for code in distinct.tolist():
        type_code, rest = divmod(code, 64)
        kind = f"tailrace.{Area(rest // 8).name}.{Operation(rest % 8).name}".lower()
        text = b',"type":"%s"' % kind.encode()
        if type_code:
            text += b',"subject":' + _encode(columns.entity_types[type_code - 1])[:-1]
        texts.append(text)
    kinds = pa.array(texts, pa.binary()).take(pa.array(place))
    keys = escaped(columns.keys.array.view(pa.binary()))
    keys = pc.binary_join_element_wise(_text(b"/"), keys, _text(b'"'), EMPTY)
    ends = pc.if_else(pa.array(columns.type_codes >= 0), keys.fill_null(b'"'), _text(b""))
    return pc.binary_join_element_wise(kinds, ends, EMPTY)


def _times(timestamps: NDArray[np.int64]) -> pa.BinaryArray:
    """Return times in RFC 3339 without zone; each distinct time is formatted once."""
    distinct, place = np.unique(timestamps, return_inverse=True)
    texts = np.datetime_as_string(distinct.astype("datetime64[us]"))
    return pa.array(texts.tolist(), pa.string()).view(pa.binary()).take(pa.array(place))


def _text(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


@dataclass(frozen=True, slots=True)
class CaptureForm:
    """One combination of format, bodies and values, with a codec for each framing of captures."""

    format: str
    bodies: str
    values: str
    objects: Codec
    """Codec for JSON arrays: an object and a comma."""
    lines: Codec
    """Codec for lines of JSON."""
    events: Codec
    """Codec for server-sent events."""

    @property
    def is_cloud(self) -> bool:
        """True if captures are the data of CloudEvents."""
        return self.format == "cloudevents"

    def split(self, frame: bytes) -> tuple[bytes, int]:
        """Return an object or line frame without its bodies, and the size of the bodies."""
        members = msgspec.json.decode(frame[:-1], type=dict[str, msgspec.Raw])
        capture = members
        if self.is_cloud:
            capture = msgspec.json.decode(members["data"], type=dict[str, msgspec.Raw])
        omitted = sum(len(bytes(capture.pop(name, b""))) for name in _BODY_NAMES)
        if self.is_cloud:
            members["data"] = msgspec.Raw(msgspec.json.encode(capture))
        return msgspec.json.encode(members) + frame[-1:], omitted


def _form(format: str, bodies: str, values: str) -> CaptureForm:
    objects = _OBJECTS[bodies, values]
    if format == "cloudevents":
        objects = CloudEventsCodec(objects)
    return CaptureForm(format, bodies, values, objects, LinesCodec(objects), EventsCodec(objects))


# Created once: codecs are compared by name.
_FORMS: Final = {each: _form(*each) for each in product(FORMATS, BODIES, VALUES)}

PLAIN: Final = _FORMS["captures", "json", "raw"]


def form_of(value: object) -> tuple[CaptureForm, object]:
    """Return the form that a JSON request names, and the request without the members of the form.

    Raises:
        InvalidRequest, Unsupported: The request names a form that does not exist.
    """
    if not isinstance(value, dict) or value.keys().isdisjoint(_MEMBERS):
        return PLAIN, value
    rest = dict[Any, Any](value)
    return _named(*(rest.pop(name, None) for name in _MEMBERS)), rest


def form_of_query(
    pairs: Iterable[tuple[str, str]],
) -> tuple[CaptureForm, list[tuple[str, str]]]:
    """Return the form that URL parameters name, and the other parameters.

    Raises:
        InvalidRequest, Unsupported: The parameters name a form that does not exist, or one name twice.
    """
    found: dict[str, str] = {}
    rest = []
    for name, text in pairs:
        if name not in _MEMBERS:
            rest.append((name, text))
        elif name in found:
            raise InvalidRequest(f"{name}: given twice")
        else:
            found[name] = text
    return _named(*map(found.get, _MEMBERS)), rest


def as_cloud(form: CaptureForm) -> CaptureForm:
    """Return a form changed to CloudEvents."""
    return _FORMS["cloudevents", form.bodies, form.values]


def as_bytes(form: CaptureForm) -> CaptureForm:
    """Return a form changed to plain captures with JSON bodies, for Arrow, which copies the bodies' bytes."""
    return _FORMS["captures", "json", form.values]


def _named(format: object, bodies: object, values: object) -> CaptureForm:
    return _FORMS[
        _one("format", format, FORMATS),
        _one("bodies", bodies, BODIES),
        _one("values", values, VALUES),
    ]


def _one(name: str, value: object, known: tuple[str, ...]) -> str:
    if value is None:
        return known[0]
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: must be one of {', '.join(known)}")
    if value not in known:
        raise Unsupported(name, f"{value[:60]!r} is not one of {', '.join(known)}")
    return value
