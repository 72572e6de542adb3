"""Statuses that no tailrace server made. Those of a server: tests/server/api/test_errors.py."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from tailrace.errors import (
    NotGrpc,
    NotPermitted,
    TailraceError,
    TransportError,
    Unsupported,
)
from tailrace.transport.grpc_status import DETAILS_KEY, error_of, rebuild


def failed(code: grpc.StatusCode, details: str, *trailers: tuple[str, bytes]) -> TailraceError:
    """Return what a call that ended with a status means."""
    metadata = grpc.aio.Metadata(*trailers)
    return error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, ""))


@pytest.mark.parametrize(
    ("code", "details", "kind", "message"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "no such method", Unsupported, "no such method"),
        (grpc.StatusCode.PERMISSION_DENIED, "not you", NotPermitted, "not you"),
        (grpc.StatusCode.INTERNAL, "reset", TransportError, "internal: reset"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "last: ipv4:127.0.0.1:7: Failed to connect to remote host: Connection refused; more",
            TransportError,
            "cannot reach 127.0.0.1:7: connection refused",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "ipv4:127.0.0.1:80: Failed parsing HTTP/2 (it is a http1.x server)",
            NotGrpc,
            "127.0.0.1:80",
        ),
    ],
)
def test_a_bare_status_becomes_the_error_that_fits(
    code: grpc.StatusCode, details: str, kind: type[TailraceError], message: str
) -> None:
    error = failed(code, details)
    assert type(error) is kind
    assert message in str(error)


def test_a_trailer_that_is_no_status_is_passed_over() -> None:
    error = failed(grpc.StatusCode.UNAVAILABLE, "gone", (DETAILS_KEY, b"\xff\xff"))
    assert type(error) is TransportError


def test_a_code_that_this_client_does_not_know_is_none() -> None:
    assert rebuild("OF_A_NEWER_SERVER", "text", {}) is None
