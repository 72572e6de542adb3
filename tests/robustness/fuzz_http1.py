"""HTTP/1.1 connections by a seed: requests of REST, event streams and GraphQL with something wrong.

What is wrong stands in the request line, the header fields, the parameters, the body, its coding, or the order
of things. Some requests are as they should be, so that one stands behind a bad one, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from tests.server.api.graphql.test_fuzz import payload
from tests.server.api.rest.test_fuzz import WORDS, value

if TYPE_CHECKING:
    from random import Random

_CATALOG: Final = "/v1/catalogs/shop"
_PATHS: Final = (
    "/",
    "/health",
    "/metrics",
    "/subscriptions",
    "/publishers",
    "/v1",
    "/v1/catalogs",
    "/v1/catalogs/live",
    "/v1/openapi.json",
    "/v1/docs",
    _CATALOG,
    f"{_CATALOG}/schema",
    *[f"{_CATALOG}/changes"] * 3,
    *[f"{_CATALOG}/changes/live"] * 4,
    f"{_CATALOG}/changes/query",
    f"{_CATALOG}/graphql",
    f"{_CATALOG}/graphql/stream",
    "/v1/catalogs/none/changes",
    "/v1/catalogs/..%2f..%2fetc/changes",
)
_RAW_PATHS: Final = (
    b"/x\x92",
    b"/%",
    b"/%ff%00%0d%0a",
    b"*",
    b"",
    b"http://elsewhere.example/health",
    b"http://[",
    b"//",
    b"/v1/catalogs/" + b"x" * 3000 + b"/changes",
    b"/v1/catalogs/shop/changes?" + b"a&" * 5000,
    b"/health?" + b"%" * 10,
    b"/health#x",
    b"/a b",
)
_NAMES: Final = (
    "sinceVersion",
    "sinceIndex",
    "fromVersion",
    "toVersion",
    "fromTime",
    "toTime",
    "after",
    "before",
    "lastEventId",
    "Last-Event-ID",
    "limit",
    "reverse",
    "format",
    "body",
    "bodies",
    "entityType",
    "primaryKey",
    "operation",
    "area",
    "containerType",
    "containerName",
    "criteria",
    "heartbeatIntervalMs",
    "anchor",
    "cursor",
    "events",
    "_",
    *WORDS,
)
_VALUES: Final = (
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "9223372036854775808",
    "1e400",
    "NaN",
    "true",
    "DATA",
    "UPSERT",
    "after",
    "change",
    "product",
    "json",
    "arrow",
    "ndjson",
    "cloudevents",
    "2026-01-01T00:00:00Z",
    "2026-99-99T99:99:99Z",
    "99999-01-01",
    "1.0.0.0.0",
    "\x00",
    "\ud83d\ude00",
    "é" * 200,
    "[]",
    "{}",
    '[{"entityType":["product"]}]',
    '[{"area":"DATA","operation":["X"]}]',
    "[" * 2000,
)
_TYPES: Final = (
    "*/*",
    "text/event-stream",
    "application/json",
    "application/x-ndjson",
    "application/vnd.apache.arrow.stream",
    "application/cloudevents-batch+json",
    "text/html",
    "application/graphql-response+json",
    "a/b;q=é",
    ";;,,q=",
    "*/*;q=2",
    "x" * 5000,
)
_HEADERS: Final = (
    b"Host: \xff",
    b"Host: [",
    b"Host:",
    b"Host: elsewhere.example",
    b"Host: a\x00b",
    b"Content-Length: -5",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Content-Length: 0x10",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: \xff",
    b"Content-Encoding: gzip",
    b"Content-Type: text/plain",
    b"Content-Type: application/json; charset=utf-16",
    b"Content-Type: multipart/form-data; boundary=",
    b"Content-Type: \xff/\xff",
    b"Expect: 100-continue",
    b"Expect: \xff",
    b"Connection: close",
    b"Connection: keep-alive, Upgrade",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"If-None-Match: *",
    b'If-None-Match: "x", W/"\xff',
    b"If-Modified-Since: never",
    b"Range: bytes=0-1",
    b"Range: bytes=9-1,\xff",
    b"Last-Event-ID: \xff",
    b"Last-Event-ID: 1.0.0.0.0",
    b"Origin: null",
    b"Origin: http://[",
    b"Access-Control-Request-Method: X",
    b"Accept-Encoding: gzip;q=x",
    b"Cookie: " + b"a=b;" * 2000,
    b"X: " + b"y" * 70_000,
    b": empty",
    b"no colon",
    b"X\x00: y",
    b"X: a\r\n folded",
    b"X : space",
)
_METHODS: Final = (
    b"GET",
    b"HEAD",
    b"OPTIONS",
    b"PUT",
    b"DELETE",
    b"TRACE",
    b"CONNECT",
    b"G\xff",
    b"",
)


def connection(random: Random) -> bytes:
    """Return what one peer sends."""
    data = b"".join(_request(random) for _ in range(random.randint(1, 4)))
    match random.randrange(8):
        case 0:  # cut off
            return data[: random.randrange(len(data))]
        case 1:  # bytes turned over
            turned = bytearray(data)
            for _ in range(random.randint(1, 8)):
                turned[random.randrange(len(turned))] ^= 1 << random.randrange(8)
            return bytes(turned)
        case 2:  # garbage between
            return random.randbytes(random.randint(1, 200)) + data
        case _:
            return data


def _request(random: Random) -> bytes:
    """Return one request."""
    target = random.choice(_PATHS)
    body = b""
    method = b"GET"
    lines = [b"Host: localhost"]
    if random.random() < 0.8:
        lines.append(b"Accept: " + random.choice(_TYPES).encode())
    if random.random() < 0.4:
        method, body = b"POST", _body(random)
        lines.append(b"Content-Type: application/json")
        lines += [] if random.random() < 0.1 else [b"Content-Length: %d" % len(body)]
    elif random.random() < 0.1:
        method = random.choice(_METHODS)
    if random.random() < 0.7:
        target += "?" + _parameters(random)
    place = target.encode() if random.random() < 0.9 else random.choice(_RAW_PATHS)
    version = b"1.1" if random.random() < 0.95 else random.choice((b"1.0", b"0.9", b"2.0", b"x"))
    for _ in range(random.choice((0, 0, 1, 1, 3))):
        lines.insert(random.randrange(len(lines) + 1), random.choice(_HEADERS))
    if random.random() < 0.05:
        del lines[random.randrange(len(lines))]
    return b"\r\n".join((method + b" " + place + b" HTTP/" + version, *lines, b"", body))


def _parameters(random: Random) -> str:
    """Return a query, as a form would make it or not."""
    pairs = [
        (
            random.choice(_NAMES),
            random.choice(_VALUES) if random.random() < 0.8 else json.dumps(value(random))[:300],
        )
        for _ in range(random.choice((1, 1, 2, 4)))
    ]
    text = urlencode(pairs, errors="surrogatepass", quote_via=quote)
    return text if random.random() < 0.9 else text + random.choice(("&", "=&=", "%", "%f", ";x=y"))


def _body(random: Random) -> bytes:
    """Return JSON of any shape, chunks that are none, or garbage."""
    match random.randrange(6):
        case 0:
            return json.dumps(payload(random)).encode()
        case 1 | 2:
            names = random.sample(_NAMES, random.randint(0, 4))
            return json.dumps({name: value(random) for name in names}).encode()
        case 3:
            return json.dumps(value(random)).encode()
        case 4:
            return random.choice((b"[" * 10_000, b"{", b"\xff\xfe", b"null", b"1e999", b""))
        case _:
            chunks = b"5\r\nhello\r\n" + random.choice(
                (b"0\r\n\r\n", b"zz\r\n", b"-1\r\n", b"fffffffff\r\n")
            )
            return random.choice((chunks, random.randbytes(100)))
