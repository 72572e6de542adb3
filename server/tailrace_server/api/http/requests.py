"""Parsing of REST requests: URL parameters, JSON body, and the accepted media type."""

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
    """Return the catalog that a path names; the system catalog for paths that name none."""
    name: str = request.path_params.get("catalog", SYSTEM_CATALOG)
    return name


def parameters(request: HTTPConnection) -> list[tuple[str, str]]:
    """Return the parameters of the URL, in order.

    Raises:
        InvalidRequest: The query is not UTF-8, or has more than 1,000 parameters.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    except UnicodeDecodeError:
        raise InvalidRequest("the query is not UTF-8") from None
    except ValueError:
        raise InvalidRequest(f"the query has more than {_FIELDS_MAX} parameters") from None


def no_parameters(request: HTTPConnection, why: str = "this path takes no parameters") -> None:
    """Refuse a URL with parameters.

    Raises:
        InvalidRequest: The URL has a parameter; the error contains its name and ``why``.
    """
    for name, _ in parameters(request):
        raise InvalidRequest(f"{name[:60]}: {why}")


async def asked_body(request: Request, settings: HttpSettings) -> object:
    """Return the JSON value of a POST that states its whole request in the body.

    Raises:
        InvalidRequest: The URL has parameters, or the body is not JSON.
        HTTPException: The body is refused, see ``body``.
    """
    no_parameters(request, "a POST has its arguments in the body; leave the query out")
    return await body(request, settings)


async def body(
    request: Request, settings: HttpSettings, read: Callable[[bytes], object] = decode
) -> object:
    """Return the JSON value of a body, decoded by ``read``.

    Raises:
        HTTPException: 408: the body arrives too slowly; 413: it is too large; 415: it has another media type.
        InvalidRequest: The body is empty or not JSON.
    """
    kind = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise HTTPException(415, f"the body must be {JSON_TYPE}, not {kind[:60]}")
    # A compressed body could be far larger in memory than the bytes that are charged for it.
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise HTTPException(415, f"the body is compressed ({packed[:60]}): send it uncompressed")
    # The deadline covers the whole body: a peer that sends a byte at a time must not hold memory for long.
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
    """Return the offered media type that the client prefers; the first one if it states no preference.

    Raises:
        HTTPException: 406: the client accepts none of the offered types; the text lists them.
    """
    text = request.headers.get("accept", "").strip()
    if not text:
        return offered[0]
    best, best_rank = "", (0.0, 0)
    for wanted, quality in map(name_and_quality, text.split(",")):
        for place, name in enumerate(offered):
            matches = wanted in ("*/*", name) or (
                wanted.endswith("/*") and name.startswith(wanted[:-1])
            )
            # Among equal qualities an exact name precedes a wildcard, then the order of `offered` decides.
            rank = (quality, (wanted == name) * len(offered) - place)
            if matches and quality and (not best or rank > best_rank):
                best, best_rank = name, rank
    if not best:
        raise HTTPException(406, f"the formats are {', '.join(offered)}")
    return best


def name_and_quality(text: str) -> tuple[str, float]:
    """Return a media range and its quality; the quality is 1 if it is missing or malformed."""
    name, *attributes = (part.strip().lower() for part in text.split(";"))
    for attribute in attributes:
        key, _, value = attribute.partition("=")
        if key == "q":
            try:
                return name, float(value)
            except ValueError:
                return name, 1.0
    return name, 1.0
