"""A schema registry for tests: the part of its REST protocol that readers use, over HTTP on loopback."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from threading import Thread
from typing import TYPE_CHECKING, Any

import fastavro

from tests.support.held_port import HeldPort

if TYPE_CHECKING:
    from collections.abc import Iterator


class Registry:
    """Schemas by id. It answers inside of `up` alone, always at the same address."""

    def __init__(self) -> None:
        self._held = HeldPort()
        self.url = f"http://{self._held.address}"
        self.answers: dict[str, Any] = {"/subjects": []}
        """Path → answer."""
        self.asked: list[str] = []
        """Paths that were asked for."""
        self.authorization: str | None = None
        """The header of the last request."""

    def add(self, number: int, schema: Any, kind: str = "AVRO", **references: str) -> None:
        """Add a schema, also as version 1 of the subject ``s<id>``; references are type name → subject."""
        listed = [{"name": n, "subject": s, "version": 1} for n, s in references.items()]
        text = schema if isinstance(schema, str) else json.dumps(schema)
        answer = {"schema": text, "schemaType": kind, "references": listed}
        self.answers[f"/schemas/ids/{number}"] = answer
        place = {"subject": f"s{number}", "version": 1, "id": number}
        self.answers[f"/subjects/s{number}/versions/1"] = {**answer, **place}

    @contextmanager
    def up(self) -> Iterator[Registry]:
        """Answer in the block."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                registry.asked.append(path)
                registry.authorization = self.headers["Authorization"]
                missing = {"error_code": 40403, "message": "Schema not found"}
                body = json.dumps(registry.answers.get(path, missing)).encode()
                self.send_response(200 if path in registry.answers else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", self._held.number), Handler) as server:
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


def framed(number: int, body: bytes) -> bytes:
    """Return a message with the id of its schema."""
    return b"\0" + number.to_bytes(4, "big") + body


def avro(number: int, schema: Any, value: Any) -> bytes:
    """Return a value as Avro, framed."""
    output = BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return framed(number, output.getvalue())
