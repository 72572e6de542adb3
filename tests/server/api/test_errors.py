"""Every error crosses the wire as itself, with its figures."""

from __future__ import annotations

import json
from uuid import UUID

import grpc
import pytest
import structlog
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from tailrace import errors
from tailrace.errors import TailraceError
from tailrace.position import END, Position
from tailrace.transport.grpc_status import error_of, may_be_tls, rebuild
from tailrace_server.api.errors import (
    GRPC_STATUS,
    HTTP_STATUS,
    encoded_problem,
    grpc_status,
    logged,
)
from tailrace_server.errors import as_tailrace_error

ONE = UUID("6f1c2a5e-0b0e-4d4f-9c39-5d3f6a1b2c3d")
OTHER = UUID("00000000-0000-4000-8000-000000000001")

SAMPLES: tuple[TailraceError, ...] = (
    errors.InvalidRequest("no"),
    errors.CursorInvalid("gärbage"),
    errors.CatalogUnknown("ship", ["shop", "crm"]),
    errors.CatalogUnknown("ship", []),
    errors.EntityTypeUnknown("shop", "widget", ["product", "order"]),
    errors.RowUnknown("product", "4711", 42),
    errors.SubscriptionUnknown("shop", "biling", ["billing"]),
    errors.SubscriptionExists("shop", "billing"),
    errors.SubscriptionPaused("billing"),
    errors.Unsupported("criteria[0].where", "later"),
    errors.PositionCompacted(Position(3), Position(9, 2), Position(12, END)),
    errors.BodiesExpired(Position(41, 3), "product", Position(90)),
    errors.DeadlineExceeded("shop", 9, 7, 10.0),
    errors.ImagesMissing(7, "4711", "before"),
    errors.ImagesMissing(8, None, "before"),
    errors.TableFileError("shop.sqlite", "another program writes it"),
    errors.ValueNotHeld("product", "price", "BIGINT", "1.5", "it is not a whole number"),
    errors.CatalogReplaced("shop", ONE, OTHER),
    errors.CatalogReplaced("shop", ONE, None),
    errors.CursorAhead("shop", "1.x", Position(7, END)),
    errors.ColumnsChanged("product", "note", "has been dropped by the source"),
    errors.HistoryReplaced("shop", "1.x", 1_700_000_000_000_000),
    errors.SubscriptionClosed("closed"),
    errors.SubscriptionBroken("cut"),
    errors.SubscriptionBroken("cut", "1.x"),
    errors.HeartbeatMissed("silence", "1.x"),
    errors.SubscriberTooSlow("slow", "1.x"),
    errors.ServerStopping("stopping", "1.x"),
    errors.TokenExpired("expired", "1.x"),
    errors.EndedByOperator("for maintenance", "1.x"),
    errors.SubscriptionOverrun("overtaken", "1.x"),
    errors.SubscriptionTakenOver("billing", 3, 4, "anonymous"),
    errors.Unauthenticated("who are you"),
    errors.Unauthenticated("the key is gone", "1.x"),
    errors.NotPermitted("not you"),
    errors.NotPermitted("no longer you", "1.x"),
    errors.QuotaExceeded("subscriptions", 10, 10, 1.5),
    errors.ServerFull("no room"),
    errors.TransportError("network"),
    errors.ConnectTimeout("late"),
    errors.NotGrpc("127.0.0.1:8081"),
    errors.TlsFailed("127.0.0.1:7411", "its certificate has expired"),
    errors.LogError("log"),
    errors.LogCorrupted("segments/1/a.arrow", 4711, "crc"),
    errors.LogMissing("shop"),
    errors.LogUnreadable("newer"),
    errors.LogFull("full"),
    errors.WriterFenced(3, 4, "ingest on host, run 1"),
    errors.UnknownWriter("a", ["b", "c"], "take over"),
    errors.InternalError("bug"),
)


def over_the_wire(error: TailraceError) -> TailraceError:
    code, text, trailers = grpc_status(error)
    return error_of(rpc_error(code, text, *trailers))


def rpc_error(
    code: grpc.StatusCode, text: str, *trailers: tuple[str, bytes]
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), text, debug_error_string=None
    )


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_itself_with_its_figures(error: TailraceError) -> None:
    arrived = over_the_wire(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.figures() == error.figures()
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_a_problem_object_is_the_same_error(error: TailraceError) -> None:
    problem = json.loads(encoded_problem(error))
    arrived = rebuild(problem["code"], problem["detail"], problem["figures"])
    assert type(arrived) is type(error)
    assert arrived.figures() == error.figures()
    assert problem["retriable"] == error.retriable
    assert problem["status"] == HTTP_STATUS[type(error)]


def test_the_table_and_the_samples_have_every_class_but_the_root() -> None:
    def tree(root: type[TailraceError]) -> set[type[TailraceError]]:
        return {root}.union(*(tree(child) for child in root.__subclasses__()))

    classes = {each for each in tree(TailraceError) if each.__module__ == "tailrace.errors"}
    assert set(HTTP_STATUS) == set(GRPC_STATUS)
    assert set(GRPC_STATUS) == classes - {TailraceError}
    assert {type(error) for error in SAMPLES} == set(GRPC_STATUS)


def test_the_details_are_googles_own_messages() -> None:
    """Any gRPC client can read them with the packages that it has."""
    code, _, ((key, value),) = grpc_status(errors.CatalogUnknown("ship", ["shop"]))
    assert key == "grpc-status-details-bin"
    status = Status.FromString(value)
    assert status.code == code.value[0] == 5
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("CATALOG_UNKNOWN", "tailrace")
    assert dict(info.metadata) == {"catalog": "ship", "known": "shop"}


def test_a_long_text_is_cut_to_what_metadata_may_hold() -> None:
    names = [f"каталог-{number}" for number in range(10_000)]
    code, text, ((_, value),) = grpc_status(errors.CatalogUnknown("x", names))
    assert code is grpc.StatusCode.NOT_FOUND
    assert len(text.encode()) * 3 + len(value) * 4 / 3 < 8192
    assert isinstance(over_the_wire(errors.CatalogUnknown("x", names)), errors.CatalogUnknown)


def test_a_foreign_error_is_our_bug() -> None:
    cause = KeyError("x")
    error = as_tailrace_error(cause)
    assert isinstance(error, errors.InternalError)
    assert error.__cause__ is cause
    assert as_tailrace_error(error) is error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.TransportError),
        (grpc.StatusCode.INTERNAL, errors.TransportError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unsupported),
        (grpc.StatusCode.PERMISSION_DENIED, errors.NotPermitted),
    ],
)
def test_a_bare_status_is_the_networks_or_the_callers_doing(
    code: grpc.StatusCode, kind: type[TailraceError]
) -> None:
    assert type(error_of(rpc_error(code, "proxy"))) is kind
    garbage = ("grpc-status-details-bin", b"\xff")
    assert type(error_of(rpc_error(code, "proxy", garbage))) is kind


def test_what_the_last_address_says_is_not_the_last_word_on_a_name() -> None:
    """A handshake may have failed at an address before it, of which core tells nothing."""

    def failed(why: str) -> grpc.aio.AioRpcError:
        said = f"failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:1: {why}"
        return rpc_error(grpc.StatusCode.UNAVAILABLE, said)

    refused = failed("Failed to connect to remote host: Connection refused")
    assert may_be_tls(refused, "localhost")
    assert not may_be_tls(refused, "::1")
    assert not may_be_tls(failed("Failed to connect to remote host: No route to host"), "there")
    assert may_be_tls(failed("Ssl handshake failed"), "::1")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
            "Failed to connect to remote host: Connection refused",
            "cannot reach 127.0.0.1:1: connection refused",
        ),
        (
            "errors resolving nowhere:1: [field:hostname lookup error:address lookup failed for nowhere:1: "
            "Domain name not found]",
            "cannot reach nowhere:1: domain name not found",
        ),
        ("Socket closed", "unavailable: Socket closed"),
    ],
    ids=["refused", "unknown name", "other"],
)
def test_why_a_server_cannot_be_reached_is_told_without_the_layers_of_grpc(
    said: str, told: str
) -> None:
    assert str(error_of(rpc_error(grpc.StatusCode.UNAVAILABLE, said))) == told


def test_a_damaged_log_is_an_error_line_and_a_request_that_is_wrong_is_none() -> None:
    with capture_logs() as lines:
        for error in (
            errors.LogCorrupted("segments/1/a.arrow", 4711, "crc"),
            errors.InvalidRequest("no"),
        ):
            assert logged(error, structlog.get_logger()) is error
    assert [(line["event"], line["log_level"]) for line in lines] == [("damaged log", "error")]
    assert "segments/1/a.arrow" in lines[0]["error"]
