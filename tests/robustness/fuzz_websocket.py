"""WebSocket connections as no client would make them, by a seed: a handshake, and what follows it in pieces.

A quarter of the handshakes have something wrong. What follows is messages of the sub-protocols, good and bad,
between frames as they should not be: opcodes, reserved bits, masks, lengths, fragments, control frames, text
that is no text, garbage, and bytes turned over.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.server.api.graphql.test_fuzz import payload
from tests.server.api.rest.test_fuzz import message, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_LIVE: Final = b"/v1/catalogs/shop/changes/live"
_GRAPHQL: Final = b"/v1/catalogs/shop/graphql"
_PROTOCOLS: Final = {_LIVE: b"tailrace.v1", _GRAPHQL: b"graphql-transport-ws"}
_PATHS: Final = (
    b"/",
    b"/x\x92",
    b"/%ff%00",
    b"*",
    b"http://[",
    b"/v1/catalogs/none/graphql",
    b"/v1/catalogs/%2e%2e/changes/live",
    _LIVE + b"?after=%ff&x" * 100,
    b"/" + b"a/" * 5000,
)
_HEADERS: Final = (
    b"Upgrade: h2c",
    b"Connection: close",
    b"Connection: Upgrade, \xff",
    b"Sec-WebSocket-Version: 12",
    b"Sec-WebSocket-Version: x",
    b"Sec-WebSocket-Key: x",
    b"Sec-WebSocket-Key: \xff\xfe",
    b"Sec-WebSocket-Protocol: ",
    b"Sec-WebSocket-Protocol: a b, \xff",
    b"Sec-WebSocket-Protocol: " + b"x," * 3000,
    b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99",
    b"Sec-WebSocket-Extensions: ;;,\xff",
    b"Origin: null",
    b"Origin: http://\xff",
    b"Origin: http://[::1",
    b"Host: \xff",
    b"Host: [",
    b"Host: elsewhere.example",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"X: " + b"y" * 70_000,
    b": empty",
    b"no colon",
    b"X\x00: y",
)
_TEXT: Final = 1
_BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10


@dataclass(frozen=True, slots=True)
class Connection:
    """What one peer sends."""

    handshake: bytes
    pieces: tuple[bytes, ...]
    """Sent one by one, once the handshake is answered."""


def connection(random: Random) -> Connection:
    """Return what one peer sends."""
    path = random.choice((_LIVE, _GRAPHQL))
    data = b"" if random.random() < 0.1 else frame(_TEXT, b'{"type":"connection_init"}')
    for _ in range(random.randint(1, 6)):
        data += random.choice(_KINDS)(random)
    match random.randrange(8):
        case 0 if data:  # cut off
            data = data[: random.randrange(len(data))]
        case 1 if data:  # bytes turned over
            turned = bytearray(data)
            for _ in range(random.randint(1, 8)):
                turned[random.randrange(len(turned))] ^= 1 << random.randrange(8)
            data = bytes(turned)
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 5))))
    pieces = tuple(
        data[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True)
    )
    return Connection(_handshake(random, path), pieces)


def frame(opcode: int, data: bytes, *, final: int = 0x80, mask: bytes | None = b"abcd") -> bytes:
    """Return a frame; ``final`` has the reserved bits too, and None leaves out the mask."""
    bit = 0 if mask is None else 0x80
    size = len(data)
    if size < 126:
        head = bytes([final | opcode, bit | size])
    elif size < 1 << 16:
        head = bytes([final | opcode, bit | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([final | opcode, bit | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return head + data
    repeated = mask * (size // 4 + 1)
    number = int.from_bytes(data, "big") ^ int.from_bytes(repeated[:size], "big")
    return head + mask + number.to_bytes(size, "big")


def _handshake(random: Random, path: bytes) -> bytes:
    """Return a request to upgrade: three in four as it should be."""
    lines = [
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + base64.b64encode(random.randbytes(16)),
        b"Sec-WebSocket-Protocol: " + _PROTOCOLS[path],
    ]
    first = b"GET " + path + b" HTTP/1.1"
    if random.random() < 0.75:
        return b"\r\n".join((first, *lines, b"", b""))
    for _ in range(random.randint(1, 3)):
        match random.randrange(5):
            case 0 if lines:
                del lines[random.randrange(len(lines))]
            case 1 if lines:
                lines[random.randrange(len(lines))] = random.choice(_HEADERS)
            case 2:
                lines.insert(random.randrange(len(lines) + 1), random.choice(_HEADERS))
            case 3:
                method = random.choice((b"GET", b"POST", b"CONNECT", b"G\xff", b""))
                version = random.choice((b"1.1", b"1.0", b"2.0", b"x"))
                first = method + b" " + random.choice((path, *_PATHS)) + b" HTTP/" + version
            case _:
                random.shuffle(lines)
    whole = b"\r\n".join((first, *lines, b"", b""))
    return whole if random.random() < 0.8 else whole[: random.randrange(len(whole))]


def _rest_message(random: Random) -> bytes:
    return frame(_kind(random), message(random)[:60_000])


def _graphql_message(random: Random) -> bytes:
    name = random.choice(("1", "1", "2", "", "x" * 1000))
    wish = {"type": "subscribe", "id": name, "payload": payload(random)}
    return frame(_kind(random), json.dumps(wish).encode())


def _conversation(random: Random) -> bytes:
    """Return messages that are well-formed, in an order that may not be."""
    wishes: tuple[object, ...] = (
        {"query": "subscription { onCatalogChange(sinceVersion: 0) { cursor after } }"},
        {"sinceVersion": 0, "body": ["after"]},
        {"after": "1.0.0.0.0"},
        value(random),
    )
    messages: tuple[dict[str, object], ...] = (
        {"type": "connection_init"},
        {"type": "connection_init", "payload": value(random)},
        {"type": "subscribe", "id": "1", "payload": random.choice(wishes)},
        {"type": "subscribe", "id": str(random.randrange(4)), "payload": random.choice(wishes)},
        {"type": "complete", "id": str(random.randrange(4))},
        {"type": "request", "id": "1", "payload": {"n": random.choice((1, 0, -1, 2**63, 2**64))}},
        {"type": "ping", "payload": value(random)},
        {"type": "pong"},
        {"type": "next", "id": "1"},
    )
    chosen = random.choices(messages, k=random.randint(1, 8))
    return b"".join(frame(_TEXT, json.dumps(each).encode()) for each in chosen)


def _kind(random: Random) -> int:
    return random.choice((_TEXT, _TEXT, _TEXT, _BINARY))


def _bits(random: Random) -> bytes:
    """Return a frame with any opcode, any reserved bits and, one time in four, no mask."""
    mask = None if random.random() < 0.25 else random.randbytes(4)
    size = random.choice((0, 1, 2, 10, 125, 126, 70_000))
    final = random.choice((0x80, 0x80, 0, 0xC0, 0xA0, 0x90, 0xF0))
    return frame(random.randrange(16), random.randbytes(size), final=final, mask=mask)


def _fragments(random: Random) -> bytes:
    """Return fragments, very many or out of order, with control frames between them."""
    piece = random.randbytes(random.choice((0, 0, 1, 100)))
    between = random.choice((b"", b"", frame(_PING, b"p"), frame(_TEXT, b"{}")))
    begin = b"" if random.random() < 0.2 else frame(_kind(random), piece, final=0)
    middle = frame(0, piece, final=0) + between
    count = random.choice((1, 3, 50, 5000))
    end = frame(0, piece) if random.random() < 0.5 else b""
    return begin + middle * count + end


def _not_text(random: Random) -> bytes:
    """Return text that is not UTF-8, whole or cut inside of a character."""
    data = random.choice(
        (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b'{"type":"\xe9"}', b"\xf8" * 1000)
    )
    if random.random() < 0.5:
        return frame(_TEXT, data)
    return frame(_TEXT, "é".encode()[:1], final=0) + frame(0, random.choice((b"", b"\xa9", data)))


def _control(random: Random) -> bytes:
    """Return control frames that are too long or in fragments, and floods of them."""
    opcode = random.choice((_PING, _PING, _PONG, _CLOSE))
    size = random.choice((0, 1, 125, 126, 127, 65_536))
    final = random.choice((0x80, 0x80, 0))
    one = frame(opcode, random.randbytes(size), final=final)
    return one * random.choice((1, 1, 1, 2000 if size < 126 else 2))


def _close(random: Random) -> bytes:
    """Return a close, and perhaps what follows it."""
    code = random.choice((1000, 1001, 0, 999, 1004, 1005, 1006, 1015, 2999, 4400, 65_535))
    reason = random.choice((b"", b"bye", b"\xff", b"x" * 123, b"x" * 124))
    data = random.choice((struct.pack(">H", code) + reason, b"", b"\x03"))
    after = random.choice((b"", frame(_TEXT, b"{}"), frame(_CLOSE, data), frame(_PING, b"")))
    return frame(_CLOSE, data) + after


def _lengths(random: Random) -> bytes:
    """Return a frame that says that it is longer than it is or may be, or says it in too many bytes."""
    head = random.choice(
        (
            b"\x81\xff" + (2**63).to_bytes(8, "big"),
            b"\x81\xff" + (2**64 - 1).to_bytes(8, "big"),
            b"\x81\xff" + (5 << 20).to_bytes(8, "big"),
            b"\x81\xff" + (65_000).to_bytes(8, "big"),
            b"\x81\xff" + (5).to_bytes(8, "big"),
            b"\x81\xfe" + (5).to_bytes(2, "big"),
            b"\x81\xfe\xff\xff",
        )
    )
    return head + bytes(4) + random.randbytes(random.choice((0, 5, 1000)))


def _noise(random: Random) -> bytes:
    return random.randbytes(random.randint(1, 500))


_KINDS: Final[tuple[Callable[[Random], bytes], ...]] = (
    *[_rest_message] * 3,
    *[_graphql_message] * 3,
    *[_conversation] * 6,
    _bits,
    _bits,
    _fragments,
    _not_text,
    _control,
    _close,
    _lengths,
    _noise,
)
