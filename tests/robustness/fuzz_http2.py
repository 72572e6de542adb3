"""Connections of HTTP/2 as no client would make them, by a seed: each is a text of bytes to send.

Half of them are calls as they should be with something wrong in the header fields, the gRPC frames or the order
of things. The other half are frames as they should not be, floods, garbage, and calls with bytes turned over.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tests.support.raw_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call_fields,
    data_frames,
    fields,
    frame,
    hello,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Pairs = list[tuple[str | bytes, str | bytes]]

PRIORITY: Final = 2
PUSH_PROMISE: Final = 5
CONTINUATION: Final = 9

_PADDED: Final = 8
_SERVICE: Final = "/tailrace.v1.ChangeCapture/"
_METHODS: Final = (
    *(
        _SERVICE + name
        for name in (
            "Subscribe",
            "SubscribeWithDemand",
            "SubscribeSystem",
            "ReadChanges",
            "ListCatalogs",
            "GetSchema",
        )
    ),
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
_PATHS: Final = (
    b"/x\x92",
    b"",
    b"x",
    b"/",
    b"*",
    b"//",
    b"/\xff\xfe",
    b"/%00",
    b"/" + b"a/" * 4000,
)
_FIELDS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-type", b"text/html"),
    (b"content-type", b"application/grpc+\x92"),
    (b"te", b"gzip"),
    (b"te", b""),
    (b"grpc-timeout", b"-1S"),
    (b"grpc-timeout", b"99999999H"),
    (b"grpc-timeout", b"1n"),
    (b"grpc-timeout", b"\x92"),
    (b"grpc-encoding", b"gzip"),
    (b"grpc-encoding", b"snappy\xff"),
    (b"grpc-accept-encoding", b"gzip,,\x00,deflate" * 50),
    (b"grpc-message", b"%zz%\xff"),
    (b"grpc-status", b"99999999999999999999"),
    (b"grpc-trace-bin", b"!!!not base64!!!"),
    (b"x-bin", b"\xff\xfe"),
    (b"x", b"\xff\xfe\x00"),
    (b"X-Upper", b"a"),
    (b"", b""),
    (b"a\x00b", b"c"),
    (b"n" * 9000, b"v"),
    (b"v", b"v" * 9000),
    (b":unknown", b"x"),
    (b":status", b"200"),
    (b":path", b"/y"),
    (b"host", b"a\xffb"),
    (b"user-agent", b"\x80" * 100),
    (b"connection", b"close"),
    (b"transfer-encoding", b"chunked"),
    (b"content-length", b"-5"),
    (b"cookie", b"a=b; \x92"),
    (b"grpc-previous-rpc-attempts", b"x"),
    (b"grpc-retry-pushback-ms", b"-"),
    (b"lb-token", b"\xff"),
    (b"endpoint-load-metrics-bin", b"AAAA"),
)


def connection(random: Random) -> bytes:
    """Return what one peer sends, from the preface on."""
    begin = hello(random.choice([0, 1, 65_535, 2**31 - 1]), random.choice([0, 1, 2**30]))
    data = begin + b"".join(random.choice(_KINDS)(random) for _ in range(random.randint(1, 4)))
    match random.randrange(8):
        case 0:  # cut off
            return data[: random.randrange(len(data))]
        case 1:  # bytes turned over
            turned = bytearray(data)
            for _ in range(random.randint(1, 8)):
                turned[random.randrange(24, len(turned))] ^= 1 << random.randrange(8)
            return bytes(turned)
        case _:
            return data


def _pairs(random: Random) -> Pairs:
    path = random.choice(_PATHS) if random.random() < 0.3 else random.choice(_METHODS)
    return list(call_fields(path))


def _call(random: Random) -> bytes:
    """Return a call with header fields that are missing, twice there, out of order or wrong."""
    pairs = _pairs(random)
    for _ in range(random.randint(0, 3)):
        match random.randrange(4):
            case 0:
                pairs.append(random.choice(_FIELDS))
            case 1:
                pairs.insert(random.randrange(len(pairs) + 1), random.choice(_FIELDS))
            case 2 if pairs:
                del pairs[random.randrange(len(pairs))]
            case _:
                random.shuffle(pairs)
    stream = _stream(random)
    flags = random.choice([END_HEADERS, END_HEADERS | END_STREAM, 0, END_HEADERS | _PADDED])
    return frame(HEADERS, flags, stream, fields(pairs)) + _body(random, stream)


def _body(random: Random, stream: int) -> bytes:
    """Return gRPC messages with wrong flags and lengths, garbage, or none."""
    parts = b""
    for _ in range(random.randint(0, 3)):
        message = random.randbytes(random.choice([0, 1, 5, 100, 5000]))
        length = len(message) + random.choice([0, 0, 0, 1, -1, 100_000, 1 << 31])
        parts += bytes([random.choice([0, 0, 0, 1, 2, 255])])
        parts += struct.pack(">I", max(length, 0) % (1 << 32)) + message
    end = frame(DATA, END_STREAM, stream, b"") if random.random() < 0.5 else b""
    return data_frames(parts, stream) + end


def _garbage_block(random: Random) -> bytes:
    """Return a header block that is no HPACK, or asks for what is not in the table."""
    block = random.choice(
        [
            random.randbytes(random.randint(0, 200)),
            b"\x3f\xff\xff\xff\xff\x0f" + fields(_pairs(random)),
            b"\xff\x80\x80\x80\x80\x80\x80\x01",
            b"\x00\x83\xff\xff\xff\x83\xff\xff\xff",
            b"\x40\x01a\x7f\xff\xff\xff\xff\x0f",
        ]
    )
    return frame(HEADERS, END_HEADERS | END_STREAM, _stream(random), block)


def _continuations(random: Random) -> bytes:
    """Return headers that never end."""
    stream = _stream(random)
    block = fields(_pairs(random))
    piece = frame(CONTINUATION, 0, stream, fields([(b"x", b"y" * 100)] * random.randint(0, 20)))
    return frame(HEADERS, 0, stream, block) + piece * random.randint(1, 300)


def _resets(random: Random) -> bytes:
    """Return calls that are taken back at once."""
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, fields(_pairs(random)))
        + frame(RST_STREAM, 0, stream, struct.pack(">I", random.choice([0, 8, 2**32 - 1])))
        for stream in range(1, 2 * random.randint(1, 60), 2)
    )


def _settings(random: Random) -> bytes:
    size = random.choice([6, 6, 6, 5, 0, 6 * 200])
    values = b"".join(
        struct.pack(">HI", random.randint(0, 10), random.choice([0, 1, 2**31, 2**32 - 1, 16_384]))
        for _ in range(size // 6 + 1)
    )
    one = frame(SETTINGS, random.choice([0, 0, 1]), random.choice([0, 0, 0, 1]), values[:size])
    return one * random.choice([1, 1, 200])


def _control(random: Random) -> bytes:
    """Return frames that manage a connection, with wrong sizes, streams and values, or too many."""
    stream = random.choice([0, _stream(random)])
    kind, payload = random.choice(
        [
            (PING, random.randbytes(random.choice([8, 8, 7, 9, 0]))),
            (WINDOW_UPDATE, struct.pack(">I", random.choice([0, 1, 2**31 - 1, 2**32 - 1]))),
            (WINDOW_UPDATE, b"\0"),
            (GOAWAY, struct.pack(">II", random.randrange(2**31), 0) + random.randbytes(20)),
            (GOAWAY, b"\0"),
            (PRIORITY, struct.pack(">IB", stream, 255)),
            (PUSH_PROMISE, struct.pack(">I", 2) + fields(_pairs(random))),
            (RST_STREAM, random.randbytes(random.choice([4, 3]))),
            (CONTINUATION, fields(_pairs(random))),
            (DATA, random.randbytes(100)),
            (random.randrange(10, 256), random.randbytes(random.randint(0, 100))),
        ]
    )
    return frame(kind, random.randrange(256), stream, payload) * random.choice([1, 1, 1, 100])


def _too_long(random: Random) -> bytes:
    """Return a frame that says that it is longer than it may be, or than it is."""
    length = random.choice([16_385, 1 << 20, (1 << 24) - 1])
    head = length.to_bytes(3, "big") + bytes([random.randrange(10), random.randrange(256)])
    return head + struct.pack(">I", _stream(random)) + random.randbytes(random.choice([0, 20_000]))


def _good(random: Random) -> bytes:
    return request(random.choice(_METHODS), b"", _stream(random))


def _noise(random: Random) -> bytes:
    return random.randbytes(random.randint(1, 500))


def _stream(random: Random) -> int:
    return random.choice([1, 1, 3, 5, 7, 9, 11, 101, 2, 0, 2**31 - 1])


_KINDS: Final[tuple[Callable[[Random], bytes], ...]] = (
    *[_call] * 9,
    _garbage_block,
    _continuations,
    _resets,
    _settings,
    _control,
    _control,
    _too_long,
    _good,
    _noise,
)
