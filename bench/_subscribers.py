"""Raw subscribers: streams without decoding, that count captures by their size.

Arguments: address, streams, captures that each must get, options as JSON (``catalog``, ``start``: "oldest",
"state" or "new", ``criteria``: entity type, ``keys``: a primary key for each stream, then without heartbeats,
``go``: call Start on the bare server first, ``ca``: the file of a CA, for TLS, ``token``: what is shown).
All captures of a bench have one size, so bytes tell the count. A frame may have 4 MiB, as our client allows,
or ``frame_bytes``.
A stream may have 4 MiB on its way, more than the server makes in one go; with gRPC's own bandwidth probe fifty
streams drift apart, and bare grpc.aio loses as much as we do. Prints "subscribed" once every stream has been
acknowledged, then one JSON line when every stream has everything.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from tailrace.v1 import capture_pb2, change_capture_pb2

_CAPTURES = 0x0A
_FRAME_BYTES = 4 << 20
CHANNEL_OPTIONS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]


class Stream:
    """One subscription and what it has got."""

    def __init__(self, call: Any, wanted: int) -> None:
        self.call = call
        self.wanted = wanted
        self.received_bytes = 0
        self.messages = 0
        self.first_at = 0.0
        self.done_at = 0.0
        self.capture_bytes = 0

    async def run(self, capture_bytes: int) -> None:
        """Read until the last capture; heartbeats do not count."""
        wanted = self.wanted * capture_bytes
        while isinstance(message := await self.call.read(), bytes):
            if message[0] != _CAPTURES:
                continue
            if not self.messages:
                self.first_at = time.perf_counter()
            self.messages += 1
            self.received_bytes += len(message)
            if self.received_bytes >= wanted:
                break
        self.done_at = time.perf_counter()
        assert self.received_bytes == wanted, (self.received_bytes, wanted)


async def main(address: str, streams: int, captures: int, options: dict[str, Any]) -> None:
    """Subscribe, read, report."""
    stalled = options.get("stalled", 0)
    keys = options.get("keys")
    frame_bytes = options.get("frame_bytes", _FRAME_BYTES)
    channel_options = [*CHANNEL_OPTIONS, ("grpc.http2.max_frame_size", frame_bytes)]
    async with _channel(address, channel_options, options.get("ca")) as channel:
        subscribe = channel.unary_stream("/tailrace.v1.ChangeCapture/Subscribe", None, None)
        go = channel.unary_unary("/tailrace.v1.ChangeCapture/Start", None, None)
        token = options.get("token")
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        calls = []
        for place in range(streams + stalled):
            request = _request(options, keys[place] if keys else None)
            calls.append(subscribe(request, metadata=metadata))
            if keys:  # requests with keys take longer; a thousand at once are more than a server lets wait
                await calls[-1].read()
        for call in calls if not keys else ():
            await call.read()
        everyone = [Stream(call, captures) for call in calls[:streams]]
        print("subscribed", flush=True)
        started = time.perf_counter()
        if options.get("go"):
            await go(b"")
        async with asyncio.TaskGroup() as tasks:
            for each in everyone:
                tasks.create_task(each.run(options["capture_bytes"]))
        first = min(each.first_at for each in everyone)
        last = max(each.done_at for each in everyone)
        report = {
            "done_at": last,
            "seconds": last - (first if options.get("start") == "new" else started),
            "captures": captures * streams,
            "messages": sum(each.messages for each in everyone),
        }
        print(json.dumps(report), flush=True)


def _channel(address: str, options: list[tuple[str, int]], ca: str | None) -> grpc.aio.Channel:
    if ca is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    return grpc.aio.secure_channel(address, credentials, options=options)


def _request(options: dict[str, Any], key: str | None) -> bytes:
    """Return the request of a stream; None: of every key."""
    request = change_capture_pb2.SubscribeRequest(
        catalog=options.get("catalog", "bench"),
        criteria=[
            capture_pb2.Criteria(
                area=capture_pb2.AREA_DATA,
                entity_type=[options.get("criteria", "product")],
                primary_key=[] if key is None else [key],
            )
        ],
        body=[capture_pb2.BODY_AFTER],
    )
    if key is not None:
        request.heartbeat_interval_ms = 3_600_000
    if options.get("start", "oldest") == "oldest":
        request.since_version = 0
    elif options["start"] == "state":
        request.initial = change_capture_pb2.INITIAL_STATE
    return request.SerializeToString()


if __name__ == "__main__":
    _, _address, _streams, _captures, _options = sys.argv
    uvloop.run(main(_address, int(_streams), int(_captures), json.loads(_options)))
