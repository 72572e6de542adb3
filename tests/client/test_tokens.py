"""Subscriptions outlive the tokens that they were opened with, and no longer than they may."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import tailrace
from tailrace import Operation
from tailrace.errors import (
    InvalidRequest,
    NotPermitted,
    TokenExpired,
    TransportError,
    Unauthenticated,
)
from tailrace.transport.grpc import SERVICE
from tailrace.v1.change_capture_pb2 import DemandRequest, SubscribeRequest, SubscribeResponse
from tailrace_server.access import configured
from tailrace_server.access.api_keys import new_key, write_keys
from tailrace_server.access.configured import Access
from tailrace_server.access.settings import AccessSettings
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.issuer import TokenIssuer
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

TOKENS, LIFETIME_S = int(os.environ.get("TOKENS", "6")), float(os.environ.get("TOKEN_S", "0.4"))
"""Tokens that one subscription outlives, and how long each is valid; `make test-long` has more of both."""
QUICK = tailrace.Retry(first_s=0.01, longest_s=0.05)


@dataclass
class Guarded:
    """A server that takes the tokens of an issuer, and the keys of a file."""

    target: str
    issuer: TokenIssuer
    keys: Path
    jwks: Path
    engine: Engine

    def rotate(self) -> None:
        """Let the issuer sign with a new key, and the server see that."""
        self.issuer.rotate()
        self.jwks.write_bytes(self.issuer.jwks())


@pytest.fixture
async def guarded(
    log_root: Path, writer: ModelWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Guarded]:
    monkeypatch.setattr(configured, "_LOOK_EVERY_S", 0.02)
    issuer = TokenIssuer("https://login.example")
    jwks, keys = tmp_path / "jwks.json", tmp_path / "keys"
    jwks.write_bytes(issuer.jwks())
    write_keys(keys, {})
    settings = AccessSettings(identities=issuer.settings(tmp_path, keys=jwks.name), api_keys=keys)
    access = Access(settings)
    async with AsyncExitStack() as stack:
        engine = Engine(log_root, EngineSettings(heartbeat_interval_s=0.05))
        await stack.enter_async_context(engine)
        watch = asyncio.create_task(access.run(engine))
        stack.callback(watch.cancel)
        server = GrpcServer(engine, door=access.door)
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.stop, 0.5)
        yield Guarded(f"127.0.0.1:{port}", issuer, keys, jwks, engine)


def write(writer: ModelWriter, key: str) -> None:
    writer.write([ModelMutation("product", key, Operation.REMOVE, None, None)])


@pytest.mark.slow
async def test_one_subscription_outlives_many_tokens_and_loses_nothing(
    guarded: Guarded, writer: ModelWriter
) -> None:
    asked: list[str] = []
    ends: list[tailrace.Disconnected] = []

    async def token() -> str:
        asked.append(guarded.issuer.token(LIFETIME_S, jti=str(len(asked))))
        return asked[-1]

    async def write_until_enough() -> int:
        written = 0
        while len(asked) <= TOKENS:
            write(writer, str(written))
            written += 1
            await asyncio.sleep(LIFETIME_S / 20)  # the pace of the writer, not a wait for anything
        # The last one comes when all is said: the reader waits for no change that is not written.
        write(writer, str(written))
        return written + 1

    async with (
        tailrace.connect(guarded.target, token=token, retry=QUICK) as client,
        client.subscribe("shop", on_disconnect=ends.append) as subscription,
    ):
        first = subscription.acknowledgement.published + 1
        writing = asyncio.create_task(write_until_enough())
        versions: list[int] = []
        async with asyncio.timeout(PATIENCE_S + 4 * TOKENS * LIFETIME_S):
            while not writing.done() or len(versions) < writing.result():
                capture = await anext(subscription)
                if capture.operation is Operation.REMOVE:
                    versions.append(capture.version)
    assert versions == list(range(first, first + await writing))
    assert len(ends) >= TOKENS
    assert TokenExpired in {type(each.error) for each in ends}


async def test_a_stream_ends_with_its_token_and_says_so_before(guarded: Guarded) -> None:
    """A token that is a text cannot be renewed: the stream ends, with the cursor to resume from."""
    for lifetime_s in (1, 4, 16):  # a busy machine may take the first one's time to connect
        left: list[float | None] = []
        async with tailrace.connect(
            guarded.target, token=guarded.issuer.token(lifetime_s)
        ) as client:
            with pytest.raises(TokenExpired, match="has expired") as raised:
                await _read_to_the_end(client, left)
        if left:
            break
    told = [each for each in left if each is not None]
    assert len(told) == len(left) > 0
    assert told == sorted(told, reverse=True)
    assert told[0] <= lifetime_s
    assert str(tailrace.Cursor.parse(str(raised.value.resume_cursor))) == raised.value.resume_cursor


async def test_a_newer_token_on_the_stream_puts_its_end_off(guarded: Guarded) -> None:
    issuer = guarded.issuer
    call = await _subscribed(guarded, issuer.token(60))
    assert (await _expires_in_s(call)) <= 60
    await call.write(DemandRequest(token=issuer.token(3600)).SerializeToString())
    while await _expires_in_s(call) <= 60:
        pass
    await call.write(DemandRequest(token=issuer.token(sub="bo")).SerializeToString())
    assert isinstance(await _end(call), NotPermitted)


@pytest.mark.parametrize("bad", ["garbage", "expired"])
async def test_a_newer_token_that_proves_nothing_ends_the_stream(
    guarded: Guarded, bad: str
) -> None:
    call = await _subscribed(guarded, guarded.issuer.token())
    token = "x.y.z" if bad == "garbage" else guarded.issuer.token(-1)
    await call.write(DemandRequest(token=token).SerializeToString())
    expected = Unauthenticated if bad == "garbage" else TokenExpired
    assert isinstance(await _end(call), expected)


async def _read_to_the_end(
    client: tailrace.Client, left: list[float | None], begun: Callable[[], None] = lambda: None
) -> None:
    """Subscribe and read; note how long the token is said to be valid."""
    async with client.subscribe("shop") as subscription:
        begun()
        async for message in subscription.messages():
            assert isinstance(message, tailrace.Heartbeat), "nothing is written meanwhile"
            left += [message.expires_in_s]


async def _subscribed(guarded: Guarded, token: str) -> Any:
    import grpc.aio

    channel = grpc.aio.insecure_channel(guarded.target)
    metadata = (("authorization", f"Bearer {token}"),)
    method = f"/{SERVICE}/SubscribeWithDemand"
    call: Any = channel.stream_stream(method, None, None)(metadata=metadata)  # type: ignore[call-arg]
    call.channel = channel
    request = SubscribeRequest(catalog="shop")
    await call.write(DemandRequest(subscribe=request).SerializeToString())
    assert SubscribeResponse.FromString(await call.read()).HasField("acknowledgement")
    return call


async def _expires_in_s(call: Any) -> float:
    async with asyncio.timeout(PATIENCE_S):
        while not (message := SubscribeResponse.FromString(await call.read())).HasField(
            "heartbeat"
        ):
            pass
    return message.heartbeat.expires_in_ms / 1000


async def _end(call: Any) -> Exception:
    import grpc.aio

    from tailrace.transport.grpc_status import error_of

    try:
        async with asyncio.timeout(PATIENCE_S):
            while await call.read():
                pass
    except grpc.aio.AioRpcError as error:
        return error_of(error)
    finally:
        await call.channel.close()
    raise AssertionError("the stream did not end")


async def test_a_key_that_is_removed_ends_the_streams_of_its_holders_and_no_others(
    guarded: Guarded,
) -> None:
    (first, gone), (second, stays) = new_key("gone"), new_key("stays")
    write_keys(guarded.keys, {"gone": gone, "stays": stays})
    async with (
        tailrace.connect(guarded.target, token=second, retry=QUICK) as other,
        tailrace.connect(guarded.target, token=first, retry=QUICK) as client,
    ):
        await _until_admitted(client, other)
        async with other.subscribe("shop") as goes_on:
            with pytest.raises(Unauthenticated, match="api_key gone is no longer accepted"):
                await _read_to_the_end(
                    client, [], lambda: write_keys(guarded.keys, {"stays": stays})
                )
            with pytest.raises(Unauthenticated):
                await client.list_catalogs()
            async with asyncio.timeout(PATIENCE_S):
                assert isinstance(await anext(goes_on.messages()), tailrace.Heartbeat)


async def _until_admitted(*clients: tailrace.Client) -> None:
    """Wait until the server has read its file of keys again."""
    async with asyncio.timeout(PATIENCE_S):
        for client in clients:
            while True:
                try:
                    await client.list_catalogs()
                except Unauthenticated:
                    await asyncio.sleep(0.01)
                else:
                    break


async def test_a_signing_key_that_is_withdrawn_ends_the_streams_of_its_tokens(
    guarded: Guarded,
) -> None:
    async with tailrace.connect(guarded.target, token=guarded.issuer.token()) as client:
        with pytest.raises(Unauthenticated, match=r"jwt anna of https://login\.example"):
            await _read_to_the_end(client, [], guarded.rotate)
    async with tailrace.connect(guarded.target, token=guarded.issuer.token()) as client:
        assert await client.list_catalogs()


async def test_a_token_that_cannot_be_had_is_asked_for_again(guarded: Guarded) -> None:
    asked = 0

    async def token() -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise OSError("the issuer is away, and here is s3cret")
        return guarded.issuer.token()

    ends: list[tailrace.Disconnected] = []
    async with (
        tailrace.connect(guarded.target, token=token, retry=QUICK) as client,
        client.subscribe("shop", on_disconnect=ends.append),
    ):
        pass
    assert [str(each.error) for each in ends] == ["token: the function raised OSError"] * 2
    assert all(isinstance(each.error, TransportError) for each in ends)


@pytest.mark.parametrize("token", ["", "two words", "ä", 7, "line\nend"])
def test_what_is_no_token_is_refused_at_once(token: Any) -> None:
    with pytest.raises(InvalidRequest, match="token: must be"):
        tailrace.connect("127.0.0.1:1", token=token)
