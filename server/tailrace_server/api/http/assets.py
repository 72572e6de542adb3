"""Pages for a browser and the files that they load; all files come from this package, none from another host.

A folder of assets holds the project's own pages and small files uncompressed. Files of other projects are
stored compressed, and their names contain their version, so browsers may cache them for ever. The content
security policy of each page forbids all other files.
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
"""Content security policy of a page: no inline style or script, and connections only to its own origin."""
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
}


class Assets:
    """One folder of assets: its pages, and the files that the pages load."""

    def __init__(
        self,
        folder: Path,
        *,
        versioned: tuple[str, ...],
        own: tuple[str, ...],
        policy: str = STRICT_POLICY,
    ) -> None:
        """Name the files that may be served.

        Args:
            folder: The folder with the pages and files.
            versioned: Files of other projects, stored compressed; their names contain their version.
            own: Files of this project, stored uncompressed.
            policy: The content security policy of the pages.
        """
        self._policy = policy
        self.files = (*versioned, *own)
        self._folder = folder
        self._versioned = frozenset(versioned)

    async def page(self, name: str, root: str = "") -> Response:
        """Return a page; ``root`` replaces ``{root}`` in its links.

        The links are relative, because a proxy may serve this server below another path.
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
        """Return the file that the path parameter ``name`` names.

        Raises:
            HTTPException: 404: the folder has no such file.
        """
        name: str = request.path_params["name"]
        # The name comes from the URL: only listed files are served, so no path can lead out of the folder.
        if name not in self.files:
            raise HTTPException(404, f"no file named {name[:60]!r} belongs to this page")
        versioned = name in self._versioned
        path = self._folder / (f"{name}.gz" if versioned else name)
        data = await asyncio.to_thread(_read, path)
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable" if versioned else "no-cache",
            "Vary": "Accept-Encoding",
        }
        # Files of other projects are stored compressed; a client without gzip gets them decompressed.
        if versioned:
            if "gzip" in request.headers.get("accept-encoding", ""):
                headers["Content-Encoding"] = "gzip"
            else:
                data = await asyncio.to_thread(gzip.decompress, data)
        return Response(data, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()
