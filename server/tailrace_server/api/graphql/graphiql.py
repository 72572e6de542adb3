"""GraphiQL, for a browser that opens a GraphQL path: its page and what the page is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace_server.api.assets import STRICT_POLICY, Assets

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_OWN_STYLE: Final = "'sha256-Y/huXlwoYkVyQlxwSVcCi1RCDGDCSVBzDt0hYP9qlTc='"
"""Of the one style element that GraphiQL 3.8.3 makes; a browser that refuses another names its hash."""
_ASSETS: Final = Assets(
    Path(__file__).parent / "assets",
    versioned=(
        *("graphiql-3.8.3.min.js", "graphiql-3.8.3.min.css"),
        *("react-18.3.1.min.js", "react-dom-18.3.1.min.js"),
    ),
    own=("page.js", "page.css"),
    policy=STRICT_POLICY.replace("style-src 'self'", f"style-src 'self' {_OWN_STYLE}").replace(
        "img-src data:", "img-src data:; font-src data:"
    ),
)
FILES: Final = _ASSETS.files


async def page(root: str) -> Response:
    """Return the page, ``root`` being the way up to ``/v1/``; it finds out itself where it is."""
    return await _ASSETS.page("page.html", root)


async def asset(request: Request) -> Response:
    """Answer ``/v1/graphiql/{name}``."""
    return await _ASSETS.answer(request)
