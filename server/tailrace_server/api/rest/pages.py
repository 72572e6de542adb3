"""The OpenAPI document for a browser.

::

    /v1/docs          the OpenAPI document, by RapiDoc; paths can be tried out
    /v1/docs/{name}   the parts of that page
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace_server.api.assets import STRICT_POLICY, Assets

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_OWN_STYLE: Final = "'sha256-hxMHPWsJKxnbIchS5PxfP/9Ipo9IhwZEbB+Wb8Dt+uw='"
"""Of the one style element that RapiDoc 9.3.8 makes; a browser that refuses another names its hash."""
_ASSETS: Final = Assets(
    Path(__file__).parent / "assets",
    versioned=("rapidoc-9.3.8.min.js",),
    own=("docs.js", "docs.css", "token.js"),
    # RapiDoc's templates have styles of elements; no other style and no script in the page is allowed.
    policy=STRICT_POLICY.replace("style-src 'self'", f"style-src 'self' {_OWN_STYLE}")
    + "; style-src-attr 'unsafe-inline'",
)
FILES: Final = _ASSETS.files


async def docs(_request: Request) -> Response:
    """Answer ``/v1/docs``."""
    return await _ASSETS.page("docs.html")


async def asset(request: Request) -> Response:
    """Answer ``/v1/docs/{name}``."""
    return await _ASSETS.answer(request)
