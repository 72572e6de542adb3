"""GraphiQL, for a browser that opens a GraphQL path: its page and what the page is made of.

Everything comes from this package, nothing from another host, and the page's policy says so. Files that carry a
version in their name never change.
"""

from __future__ import annotations

import asyncio
import gzip
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

_FOLDER: Final = Path(__file__).parent / "assets"
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_VERSIONED: Final = (
    *("graphiql-3.8.3.min.js", "graphiql-3.8.3.min.css"),
    *("react-18.3.1.min.js", "react-dom-18.3.1.min.js"),
)
"""Kept compressed."""
FILES: Final = (*_VERSIONED, "page.js", "page.css")
_HEADERS: Final = {
    # The editor sets styles of its own; everything else is a file of ours.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; "
        "font-src data:; connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def page() -> Response:
    """Return the page; it finds out by itself which path it was asked for at."""
    data = await asyncio.to_thread(_file, "page.html")
    return Response(
        data,
        headers={**_HEADERS, "Cache-Control": "no-cache", "Vary": "Accept"},
        media_type="text/html",
    )


async def asset(request: Request) -> Response:
    """Answer ``/v1/graphiql/{name}``."""
    name: str = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404, f"no file named {name[:60]!r} belongs to GraphiQL")
    data = await asyncio.to_thread(_file, name)
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable"
        if name in _VERSIONED
        else "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Vary": "Accept-Encoding",
    }
    if name in _VERSIONED:
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            data = await asyncio.to_thread(gzip.decompress, data)
    return Response(data, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _file(name: str) -> bytes:
    return (_FOLDER / (f"{name}.gz" if name in _VERSIONED else name)).read_bytes()
