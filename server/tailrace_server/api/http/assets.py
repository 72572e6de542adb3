"""Pages for a browser, and the files that they are made of: all from this package, nothing from another host.

A folder of assets holds our pages and small files as they are. Files of other projects are compressed and have
their version in their name, so that browsers may keep them for ever. Each page's policy forbids anything else.
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

_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
STRICT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No style or script in the page, no connection but to where it came from."""
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
}


class Assets:
    """One folder of them."""

    def __init__(
        self,
        folder: Path,
        *,
        versioned: tuple[str, ...],
        own: tuple[str, ...],
        policy: str = STRICT_POLICY,
    ) -> None:
        """Name the files beside the pages: ``versioned`` are kept compressed, ``own`` as they are.

        ``policy`` is the pages' content security policy.
        """
        self._policy = policy
        self.files = (*versioned, *own)
        self._folder = folder
        self._versioned = frozenset(versioned)

    async def page(self, name: str, root: str = "") -> Response:
        """Return a page; ``root`` takes the place of ``{root}`` in its links.

        They are relative: a proxy may have put the server below a path of its own.
        """
        data = await asyncio.to_thread(_read, self._folder / name)
        data = data.replace(b"{root}", root.encode())
        return Response(
            data,
            headers={
                **_HEADERS,
                "Content-Security-Policy": self._policy,
                "Cache-Control": "no-cache",
                "Vary": "Accept",
            },
            media_type="text/html",
        )

    async def answer(self, request: Request) -> Response:
        """Answer a path that ends with ``{name}``.

        Raises:
            HTTPException: 404: there is no such file.
        """
        name: str = request.path_params["name"]
        if name not in self.files:
            raise HTTPException(404, f"no file named {name[:60]!r} belongs to this page")
        versioned = name in self._versioned
        path = self._folder / (f"{name}.gz" if versioned else name)
        data = await asyncio.to_thread(_read, path)
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable" if versioned else "no-cache",
            "Vary": "Accept-Encoding",
        }
        if versioned:
            if "gzip" in request.headers.get("accept-encoding", ""):
                headers["Content-Encoding"] = "gzip"
            else:
                data = await asyncio.to_thread(gzip.decompress, data)
        return Response(data, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()
