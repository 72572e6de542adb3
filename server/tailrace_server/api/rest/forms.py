"""The forms in which a JSON face writes captures: what is asked for beside the fields of a request.

::

    format   captures        each as docs/rest.md shows it; the default
             cloudevents     each as the data of a CloudEvent
    bodies   json            objects, spliced in byte for byte; the default
             text            strings that hold the same bytes: exact whatever parser reads them

Both are members of a JSON request, or parameters of a URL. They are no fields of proto/tailrace/v1: over gRPC a
body is bytes anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.errors import InvalidRequest, Unsupported
from tailrace_server.api.rest.cloudevents import CloudEventsCodec
from tailrace_server.api.rest.codecs import EventsCodec, LinesCodec
from tailrace_server.capture.codecs import JSON, JSON_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.capture.codecs import Codec

FORMATS: Final = ("captures", "cloudevents")
BODIES: Final = ("json", "text")
_BODY_NAMES: Final = ("change", "before", "after")


@dataclass(frozen=True, slots=True)
class CaptureForm:
    """One way to write captures, in each of the framings; made once, since codecs are told apart by name."""

    format: str
    bodies: str
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


def _form(format: str, bodies: str) -> CaptureForm:
    objects: Codec = JSON if bodies == "json" else JSON_TEXT
    if format == "cloudevents":
        objects = CloudEventsCodec(objects)
    return CaptureForm(format, bodies, objects, LinesCodec(objects), EventsCodec(objects))


_FORMS: Final = {(format, bodies): _form(format, bodies) for format in FORMATS for bodies in BODIES}
PLAIN: Final = _FORMS["captures", "json"]


def form_of(value: object) -> tuple[CaptureForm, object]:
    """Return the form that a request names, and the request without that.

    Raises:
        InvalidRequest, Unsupported: It names one that there is not.
    """
    if not isinstance(value, dict) or not value.keys() & {"format", "bodies"}:
        return PLAIN, value
    rest = dict[Any, Any](value)
    return _named(rest.pop("format", None), rest.pop("bodies", None)), rest


def form_of_query(
    pairs: Iterable[tuple[str, str]],
) -> tuple[CaptureForm, list[tuple[str, str]]]:
    """Return the form that parameters name, and the other parameters; raises as ``form_of``."""
    found: dict[str, str] = {}
    rest = []
    for name, text in pairs:
        if name not in ("format", "bodies"):
            rest.append((name, text))
        elif name in found:
            raise InvalidRequest(f"{name}: given twice")
        else:
            found[name] = text
    return _named(found.get("format"), found.get("bodies")), rest


def as_cloud(form: CaptureForm) -> CaptureForm:
    """Return a form with the captures as the data of CloudEvents."""
    return _FORMS["cloudevents", form.bodies]


def _named(format: object, bodies: object) -> CaptureForm:
    return _FORMS[_one("format", format, FORMATS), _one("bodies", bodies, BODIES)]


def _one(name: str, value: object, known: tuple[str, ...]) -> str:
    if value is None:
        return known[0]
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: must be one of {', '.join(known)}")
    if value not in known:
        raise Unsupported(name, f"{value[:60]!r} is none of {', '.join(known)}")
    return value
