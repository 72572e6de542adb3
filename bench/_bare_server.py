"""The baseline: grpc.aio that sends the same constant message again and again, made once.

No server on this stack can be faster. Streams begin together, at each call of Start. Arguments: messages in
all, captures a message, bytes a capture; for TLS, the files of a certificate and its key.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import uvloop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def main(
    messages: int, captures: int, capture_bytes: int, credentials: grpc.ServerCredentials | None
) -> None:
    """Serve until told to stop; ``captures`` 0 opens streams that stay silent."""
    head = b"\x0a" + _varint(capture_bytes - 1 - len(_varint(capture_bytes - 3)))
    message = (head + b"x" * (capture_bytes - len(head))) * captures
    go = asyncio.Event()

    async def subscribe(request: bytes, context: Any) -> AsyncIterator[bytes]:
        begin = go  # before the acknowledgement: whoever has it may call Start at once
        yield b"\x12\x00"
        if captures:
            await begin.wait()
            for _ in range(messages):
                yield message
        await asyncio.Event().wait()

    async def start(request: bytes, context: Any) -> bytes:
        nonlocal go
        go.set()
        go = asyncio.Event()
        return b""

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "tailrace.v1.ChangeCapture",
                {
                    "Subscribe": grpc.unary_stream_rpc_method_handler(subscribe),
                    "Start": grpc.unary_unary_rpc_method_handler(start),
                },
            )
        ]
    )
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    print(json.dumps({"grpc": f"127.0.0.1:{port}"}), flush=True)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()
    await server.stop(0)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


if __name__ == "__main__":
    _messages, _captures, _capture_bytes = map(int, sys.argv[1:4])
    _credentials = None
    if sys.argv[4:]:
        _certificate, _key = (Path(each).read_bytes() for each in sys.argv[4:])
        _credentials = grpc.ssl_server_credentials([(_key, _certificate)])
    uvloop.run(main(_messages, _captures, _capture_bytes, _credentials))
