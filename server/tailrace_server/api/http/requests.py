"""The parts of a REST request: its parameters, its body and the format that it accepts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from tailrace.errors import InvalidRequest
from tailrace_server.api.json_requests import decode
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import HTTPConnection, Request

    from tailrace_server.api.settings import HttpSettings

JSON_TYPE: Final = "application/json"
LINES_TYPE: Final = "application/x-ndjson"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
CLOUD_TYPE: Final = "application/cloudevents-batch+json"

_FIELDS_MAX: Final = 1_000


def catalog_of(request: HTTPConnection) -> str:
    """Return the catalog that a path names; the paths of the system log name none."""
    name: str = request.path_params.get("catalog", SYSTEM_CATALOG)
    return name


def parameters(request: HTTPConnection) -> list[tuple[str, str]]:
    """Return the parameters of the URL, in order.

    Raises:
        InvalidRequest: It is not UTF-8, or has too many.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    except UnicodeDecodeError:
        raise InvalidRequest("the query is not UTF-8") from None
    except ValueError:
        raise InvalidRequest(f"the query has more than {_FIELDS_MAX} parameters") from None


def no_parameters(request: HTTPConnection, why: str = "this path takes no parameters") -> None:
    """Refuse parameters where there are none.

    Raises:
        InvalidRequest: There is one; names it and says why.
    """
    for name, _ in parameters(request):
        raise InvalidRequest(f"{name[:60]}: {why}")


async def asked_body(request: Request, settings: HttpSettings) -> object:
    """Return the JSON value of a body that asks for everything; a URL with parameters is refused.

    Raises:
        HTTPException, InvalidRequest: As ``body``; as ``no_parameters``.
    """
    no_parameters(request, "a POST asks in its body, and takes no parameters")
    return await body(request, settings)


async def body(
    request: Request, settings: HttpSettings, read: Callable[[bytes], object] = decode
) -> object:
    """Return the JSON value of a body, as ``read`` reads it.

    Raises:
        HTTPException: 408, 413, 415: it comes too slowly, is too large, is of another type.
        InvalidRequest: It is no JSON.
    """
    kind = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise HTTPException(415, f"the body is {JSON_TYPE}, not {kind[:60]}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise HTTPException(415, f"the body is packed ({packed[:60]}): send it as it is")
    data = bytearray()
    try:
        async with asyncio.timeout(settings.request_body_s):
            async for chunk in request.stream():
                data += chunk
                if len(data) > settings.ws_message_bytes:
                    limit = settings.ws_message_bytes
                    raise HTTPException(413, f"the body has more than {limit} bytes, the limit")
    except TimeoutError:
        seconds = settings.request_body_s
        raise HTTPException(408, f"the body did not arrive within {seconds:g} s") from None
    if not data:
        raise InvalidRequest(f"the body is empty; expected {JSON_TYPE}")
    return read(bytes(data))


def accepted(request: Request, offered: Sequence[str]) -> str:
    """Return the media type that the client likes best among those offered; the first where it has no say.

    Raises:
        HTTPException: 406, naming what there is.
    """
    text = request.headers.get("accept", "").strip()
    if not text:
        return offered[0]
    best, best_rank = "", (0.0, 0)
    for wanted, quality in map(_range, text.split(",")):
        for place, name in enumerate(offered):
            matches = wanted in ("*/*", name) or (
                wanted.endswith("/*") and name.startswith(wanted[:-1])
            )
            rank = (quality, (wanted == name) * len(offered) - place)
            if matches and quality and (not best or rank > best_rank):
                best, best_rank = name, rank
    if not best:
        raise HTTPException(406, f"there is {', '.join(offered)}")
    return best


def _range(text: str) -> tuple[str, float]:
    """Return a media range and its quality; one that cannot be read counts in full."""
    name, *attributes = (part.strip().lower() for part in text.split(";"))
    for attribute in attributes:
        key, _, value = attribute.partition("=")
        if key == "q":
            try:
                return name, float(value)
            except ValueError:
                return name, 1.0
    return name, 1.0
