"""Reads a token from the ``authorization`` field of a request, which HTTP and gRPC have alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEME = "bearer"


def bearer_token(values: Sequence[str]) -> str | None:
    """Return the token of the ``authorization`` fields of a request; None where there is none.

    Raises:
        Unauthenticated: There are two, or another scheme; what came is never shown.
    """
    if not values:
        return None
    if len(values) > 1:
        raise Unauthenticated("two authorization fields came; send one")
    scheme, _, token = values[0].strip().partition(" ")
    token = token.strip()
    if scheme.lower() != _SCHEME or not token:
        raise Unauthenticated("authorization has another form than `Bearer TOKEN`")
    # A token is one word of visible ASCII in every form that there is.
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Unauthenticated("the token has characters that no token has")
    return token
