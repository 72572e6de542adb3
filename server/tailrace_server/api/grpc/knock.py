"""One call to our own listener over a bare socket, as any client would make it.

By hand and not by grpc's client, so that it shares nothing with the server but the wire. The call is
``grpc.health.v1.Health/Check`` with an empty message. Only whether it is answered matters::

    preface  SETTINGS  HEADERS(stream 1)  DATA(stream 1, end)   ─▶
                                   ◀─   …  HEADERS(stream 1)  …

Over TLS the same is said inside. If clients must show a certificate, which we do not have, the handshake is the
answer.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tailrace_server.api.transport_security.self_probe import opened

if TYPE_CHECKING:
    import asyncio

    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.units import Address

_HEADERS: Final = 1
_SETTINGS: Final = 4
_END_HEADERS: Final = 4
_END_STREAM: Final = 1
_STREAM: Final = struct.pack(">I", 1)


async def knock(address: Address, tls: TlsFiles | None = None) -> None:
    """Make a call and return once an answer has begun.

    Raises:
        OSError: Nothing listens, or the connection was ended without an answer.
    """
    async with opened(address, tls, "h2") as streams:
        if streams is None:
            return
        reader, writer = streams
        writer.write(_call(str(address), "http" if tls is None else "https"))
        try:
            while await _frame(reader) != (_HEADERS, _STREAM):
                pass
        except EOFError as error:
            raise OSError("the connection ended without an answer") from error


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return type and stream of the next frame, which is read whole."""
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[5:]


def _call(authority: str, scheme: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": scheme,
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    # Literal fields without index and without Huffman coding: RFC 7541, 6.2.2.
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _framed(_SETTINGS, 0, bytes(4), b"")
        + _framed(_HEADERS, _END_HEADERS, _STREAM, block)
        + _framed(0, _END_STREAM, _STREAM, bytes(5))
    )


def _framed(kind: int, flags: int, stream: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream + payload


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()
