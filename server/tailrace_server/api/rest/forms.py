"""The forms in which a JSON face writes captures: what is asked for beside the fields of a request.

::

    format   captures        each as docs/rest.md shows it; the default
             cloudevents     each as the data of a CloudEvent
    bodies   json            objects, spliced in byte for byte; the default
             text            strings that hold the same bytes: exact whatever parser reads them
    values   raw             as the source wrote them; the default
             decoded         by the column's type and encoding (wal/schema/decoding.py)

All are members of a JSON request, or parameters of a URL. Of
them proto/tailrace/v1 has ``values`` only: over gRPC a body is bytes anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.errors import InvalidRequest, Unsupported
from tailrace_server.api.rest.cloudevents import CloudEventsCodec
from tailrace_server.api.rest.codecs import EventsCodec, LinesCodec
from tailrace_server.codecs import JSON, JSON_DECODED, JSON_TEXT, JSON_TEXT_DECODED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.codecs import Codec

FORMATS: Final = ("captures", "cloudevents")
BODIES: Final = ("json", "text")
VALUES: Final = ("raw", "decoded")
_BODY_NAMES: Final = ("change", "before", "after")


@dataclass(frozen=True, slots=True)
class CaptureForm:
    """One way to write captures, in each of the framings; made once, since codecs are compared by name."""

    format: str
    bodies: str
    values: str
    objects: Codec
    """An object and a comma: for arrays."""
    lines: Codec
    events: Codec

    @property
    def is_cloud(self) -> bool:
        """Whether captures are the data of CloudEvents."""
        return self.format == "cloudevents"

    def split(self, frame: bytes) -> tuple[bytes, int]:
        """Return a capture's frame without its bodies, whatever its framing, and their size."""
        members = msgspec.json.decode(frame[:-1], type=dict[str, msgspec.Raw])
        capture = members
        if self.is_cloud:
            capture = msgspec.json.decode(members["data"], type=dict[str, msgspec.Raw])
        omitted = sum(len(bytes(capture.pop(name, b""))) for name in _BODY_NAMES)
        if self.is_cloud:
            members["data"] = msgspec.Raw(msgspec.json.encode(capture))
        return msgspec.json.encode(members) + frame[-1:], omitted


_OBJECTS: Final[dict[tuple[str, str], Codec]] = {
    ("json", "raw"): JSON,
    ("json", "decoded"): JSON_DECODED,
    ("text", "raw"): JSON_TEXT,
    ("text", "decoded"): JSON_TEXT_DECODED,
}


def _form(format: str, bodies: str, values: str) -> CaptureForm:
    objects = _OBJECTS[bodies, values]
    if format == "cloudevents":
        objects = CloudEventsCodec(objects)
    return CaptureForm(format, bodies, values, objects, LinesCodec(objects), EventsCodec(objects))


_FORMS: Final = {each: _form(*each) for each in product(FORMATS, BODIES, VALUES)}
PLAIN: Final = _FORMS["captures", "json", "raw"]
_MEMBERS: Final = ("format", "bodies", "values")


def form_of(value: object) -> tuple[CaptureForm, object]:
    """Return the form that a request names, and the request without that.

    Raises:
        InvalidRequest, Unsupported: It names one that there is not.
    """
    if not isinstance(value, dict) or value.keys().isdisjoint(_MEMBERS):
        return PLAIN, value
    rest = dict[Any, Any](value)
    return _named(*(rest.pop(name, None) for name in _MEMBERS)), rest


def form_of_query(
    pairs: Iterable[tuple[str, str]],
) -> tuple[CaptureForm, list[tuple[str, str]]]:
    """Return the form that parameters name, and the other parameters; raises as ``form_of``."""
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
    """Return a form with the captures as the data of CloudEvents."""
    return _FORMS["cloudevents", form.bodies, form.values]


def as_bytes(form: CaptureForm) -> CaptureForm:
    """Return a form for a framing whose bodies are bytes."""
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
        raise Unsupported(name, f"{value[:60]!r} is none of {', '.join(known)}")
    return value
