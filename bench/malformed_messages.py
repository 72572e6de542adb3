"""Does a face crash, leak a task or grow when it is sent nothing but nonsense?

::

    8 peers: generated messages that mean nothing, or nearly something ──▶ tailrace

More than 10,000 messages a face, each answered, refused or paid for with its connection before the next is
sent. The generators are those of the fuzz tests. Afterwards the server must still serve, without a
subscription, a live connection or a task more than before, and without an error in its log. The figure is the
growth of its anonymous memory (RssAnon) from message 1,000 to the last.

There is no baseline: the bound is 16 MiB.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import httpx
import websockets
from websockets.asyncio.client import connect

from bench._harness import machine, server, table, tailrace_server
from bench._log import CATALOG, write_log
from tailrace.transport.grpc import SERVICE
from tailrace.v1.capture_pb2 import BODY_AFTER, Criteria
from tailrace.v1.change_capture_pb2 import DemandRequest, ReadChangesRequest, SubscribeRequest
from tests.server.api.graphql.test_fuzz import payload
from tests.server.api.rest.test_fuzz import WORDS, message, value
from tests.support.polling import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bench._harness import Server

    Face = Callable[[str, str, random.Random, int], Coroutine[Any, Any, None]]

MESSAGES = 11_000
PEERS = 8
WARM_UP = 1_000
GROWTH_MAX = 16 << 20
PATIENCE_S = 30.0
LIVE = f"/v1/catalogs/{CATALOG}/changes/live"


async def over_grpc(_http: str, address: str, chance: random.Random, count: int) -> None:
    """Call with requests in which bytes were changed; what turns out to have a meaning is cancelled."""
    criteria = Criteria(entity_type=["product"], primary_key=["1"])
    subscribe = SubscribeRequest(catalog=CATALOG, since_version=1, body=[BODY_AFTER])
    subscribe.criteria.append(criteria)
    read = ReadChangesRequest(catalog=CATALOG, after="1.x", limit=3, criteria=[criteria])
    valid = {
        "Subscribe": subscribe,
        "ReadChanges": read,
        "SubscribeWithDemand": DemandRequest(subscribe=subscribe),
    }
    async with grpc.aio.insecure_channel(
        address, [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        for _ in range(count):
            method = chance.choice(tuple(valid))
            data = bytearray(valid[method].SerializeToString())
            for _ in range(chance.choice((1, 1, 3, 10))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            path = f"/{SERVICE}/{method}"
            if method == "SubscribeWithDemand":
                call: Any = channel.stream_stream(path, None, None)()  # type: ignore[call-arg]
                await call.write(bytes(data))
            else:
                call = channel.unary_stream(path, None, None)(bytes(data))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await call.read()
            except grpc.aio.AioRpcError:
                continue
            call.cancel()


async def over_http(address: str, _grpc: str, chance: random.Random, count: int) -> None:
    """Ask for history and event streams with parameters and bodies that have no meaning."""
    paths = (f"/v1/catalogs/{CATALOG}/changes", LIVE, "/v1/catalogs/x", f"{LIVE}/x")
    names = (
        *WORDS,
        *("fromTime", "before", "limit", "format", "bodies", "entityType", "operation"),
    )
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        for _ in range(count):
            path = chance.choice(paths)
            accept = chance.choice(("*/*", "text/event-stream", "x", "a/b;q=é"))
            headers = {b"accept": accept.encode()}
            if chance.random() < 0.5:
                wish = {chance.choice(names): value(chance) for _ in range(2)}
                query = "/query" if path.endswith("changes") else ""
                request = client.build_request("POST", path + query, json=wish, headers=headers)
            else:
                pairs: list[tuple[str, str | int | float | bool | None]] = [
                    (chance.choice(names), str(value(chance))[:200])
                    for _ in range(chance.choice((1, 3)))
                ]
                request = client.build_request("GET", path, params=pairs, headers=headers)
            async with asyncio.timeout(PATIENCE_S):
                answer = await client.send(request, stream=True)
                assert answer.status_code < 500, answer
                await answer.aclose()


async def over_rest_socket(address: str, _grpc: str, chance: random.Random, count: int) -> None:
    """Send nonsense to the sub-protocol of the REST face."""

    def frames() -> list[bytes]:
        return [message(chance)[:60_000]]

    await _over_socket(f"ws://{address}{LIVE}", "tailrace.v1", frames, chance, count)


async def over_graphql_socket(address: str, _grpc: str, chance: random.Random, count: int) -> None:
    """Send documents that were changed; what turns out to be valid is completed."""

    def frames() -> list[bytes]:
        subscribe = {"type": "subscribe", "id": "1", "payload": payload(chance)}
        return [json.dumps(subscribe).encode(), b'{"type":"complete","id":"1"}']

    url = f"ws://{address}/v1/catalogs/{CATALOG}/graphql"
    await _over_socket(url, "graphql-transport-ws", frames, chance, count)


async def _over_socket(
    url: str,
    subprotocol: str,
    frames: Callable[[], list[bytes]],
    chance: random.Random,
    count: int,
) -> None:
    offered = [websockets.Subprotocol(subprotocol)]
    while count:
        async with connect(url, subprotocols=offered, close_timeout=2) as one:
            try:
                await one.send('{"type":"connection_init"}')
                while count:
                    count -= 1
                    for frame in frames():
                        await one.send(frame, text=chance.random() < 0.95)
                    await one.send('{"type":"ping","payload":{}}')
                    async with asyncio.timeout(PATIENCE_S):
                        while b'"pong"' not in await one.recv(decode=False):
                            pass
            except websockets.ConnectionClosed:
                continue


async def over_graphql_http(address: str, _grpc: str, chance: random.Random, count: int) -> None:
    """Post documents that were changed."""
    url = f"http://{address}/v1/catalogs/{CATALOG}/graphql"
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(count):
            answer = await client.post(url, json=payload(chance), timeout=PATIENCE_S)
            assert answer.status_code < 500, answer.text


FACES: dict[str, Face] = {
    "gRPC": over_grpc,
    "REST and event streams": over_http,
    "REST over WebSocket": over_rest_socket,
    "GraphQL over WebSocket": over_graphql_socket,
    "GraphQL over HTTP": over_graphql_http,
}


async def figures(address: str) -> dict[str, int]:
    """Return what must be as before: tasks of the event loop, live connections, subscriptions."""
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        text = (await client.get("/metrics")).text
        names = ("tailrace_event_loop_tasks", "tailrace_live_connections")
        found = {each: int(float(re.findall(rf"^{each} (\S+)", text, re.M)[0])) for each in names}
        found["subscriptions"] = len((await client.get("/subscriptions")).json())
        return found


async def growth(subject: Server, grpc_address: str, face: Face) -> int:
    """Return by how many bytes anonymous memory grew from message 1,000 to the last.

    Raises:
        TimeoutError: A task, a connection or a subscription was left behind.
    """
    before = await figures(subject.address)
    chances = [random.Random(seed) for seed in range(PEERS)]

    async def talk(count: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for chance in chances:
                tasks.create_task(face(subject.address, grpc_address, chance, count // PEERS))

    await talk(WARM_UP)
    base = subject.anonymous_bytes()
    await talk(MESSAGES - WARM_UP)

    async def as_before() -> bool:
        now = await figures(subject.address)
        return all(now[name] <= before[name] for name in before)

    await until_answered(as_before)
    return subject.anonymous_bytes() - base


def main() -> None:
    """Print a line for each face, and fail where one does not hold."""
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=1_000, rows_per_transaction=100, transactions_per_commit=1)
        for name, face in FACES.items():
            with socket.create_server(("127.0.0.1", 0)) as free:
                grpc_address = f"127.0.0.1:{free.getsockname()[1]}"
            command = tailrace_server(
                root, "--grpc", grpc_address, "--log-format", "json", http="127.0.0.1:0"
            )
            log: list[bytes] = []
            with server(command, "http") as subject:
                reader = threading.Thread(target=log.extend, args=(subject.process.stdout,))
                reader.start()
                grown = asyncio.run(growth(subject, grpc_address, face))
                crashed = subject.process.poll() is not None
                subject.process.terminate()
                reader.join()
            errors = [line for line in log if b'"level": "error"' in line or b"Traceback" in line]
            rows.append((name, f"{MESSAGES:,}", f"{grown / (1 << 20):+.1f} MiB", str(len(errors))))
            print(f"{name}: done", flush=True)
            if grown > GROWTH_MAX or crashed or errors:
                wrong.append(f"{name}: {grown:,} bytes, {errors[:3]}")
    print(machine())
    header = ("face", "messages", "growth after 1,000", "errors logged")
    table("Messages without meaning", header, rows)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
