"""A request to end a subscription, and the addresses from which it may come."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.api.rest.requests import JSON_TYPE, asked_body
from tailrace_server.grants.principal import ANONYMOUS

if TYPE_CHECKING:
    from starlette.requests import Request

    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.grants.principal import Principal

_REASON_MAX: Final = 200
"""Characters, so that it fits whole into the trailers of gRPC, with the cursor."""


async def reason_of(request: Request, settings: HttpSettings) -> str:
    """Return the reason that a request gives.

    Raises:
        HTTPException: 403: it comes from another page; 415: it does not say that it is JSON.
        InvalidRequest: It gives no reason, or one that is too long.
    """
    _refuse_other_pages(request, settings)
    body = await asked_body(request, settings)
    if not isinstance(body, dict) or set(body) != {"reason"}:
        raise InvalidRequest('the body is {"reason": "…"}, what the subscriber is told')
    reason = body["reason"]
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidRequest("reason: a text that says to the subscriber why it was ended")
    reason = " ".join(reason.split())
    if len(reason) > _REASON_MAX:
        raise InvalidRequest(f"reason: {len(reason)} characters; at most {_REASON_MAX}")
    return reason


def _refuse_other_pages(request: Request, settings: HttpSettings) -> None:
    """Refuse what a page of another origin can send without being asked for leave by its browser.

    It can send a POST with any text, but not say that this is JSON; and its browser names it as the origin. An
    origin has to be allowed by its name: that every page may read does not mean that every page may do this.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise HTTPException(415, f"the request must say that its body is {JSON_TYPE}")
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc == request.headers.get("host"):
        return
    if settings.origins.any or not settings.origins.has(origin):
        raise HTTPException(
            403, f"a page of {origin[:100]} may not end subscriptions; name it in ws_origins"
        )


def refuse_strangers(request: Request, caller: Principal) -> None:
    """Refuse a caller without an identity that comes from another machine.

    Raises:
        NotPermitted: It is one.
    """
    if caller is not ANONYMOUS or (request.client and _is_loopback(request.client.host)):
        return
    raise NotPermitted(
        "who is anonymous may end subscriptions from the server's own machine only; have the server ask for "
        "identities (docs/security.md)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
