"""The OpenAPI document is valid by its specification's own rules, and everything sent is valid by it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import jsonschema
import openapi_spec_validator
import pytest
from starlette.routing import Route, WebSocketRoute

from tailrace_server.api.http.guard import BrowserSessions, SessionFace
from tailrace_server.api.rest import RestFace, openapi, routes
from tailrace_server.api.settings import HttpSettings
from tests.conformance.shop import COLUMNS, SHOP
from tests.server.api.rest.conftest import LIVE, hear, say
from tests.server.api.rest.test_socket import subscribe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

PAYLOADS: Final = {
    "subscribe": "Subscribe",
    "subscribed": "Acknowledgement",
    "next": "Captures",
    "heartbeat": "Heartbeat",
    "request": "Demand",
    "error": "Error",
}
"""The component of each message of the sub-protocol ``tailrace.v1`` that has a payload of its own."""


def check(value: object, schema: dict[str, Any]) -> None:
    """Hold a value against a schema that refers to the shared components."""
    root = {"components": openapi.document()["components"], **schema}
    jsonschema.Draft202012Validator(root).validate(value)


def check_payload(message: dict[str, Any]) -> None:
    """Hold the payload of a message against its component; other messages have none, or any."""
    name = PAYLOADS.get(message["type"])
    if name is not None:
        check(message["payload"], component(name))


def component(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


async def test_the_openapi_document_is_valid_and_served(serve: Serve) -> None:
    served = await serve()
    document = (await served.http.get("/v1/openapi.json")).json()
    openapi_spec_validator.validate(document, cls=openapi_spec_validator.OpenAPIV31SpecValidator)
    assert document == json.loads(json.dumps(openapi.document()))


async def test_the_document_names_every_route(serve: Serve) -> None:
    served = await serve()
    for schema in openapi.document()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    paths = openapi.document()["paths"]
    for path in paths:
        answer = await served.http.options(re.sub(r"\{\w+\}", "shop", path))
        allowed = {each.strip().lower() for each in answer.headers["allow"].split(",")}
        assert allowed - {"head"} == set(paths[path]) - {"parameters"}, path
    routes = RestFace(served.engine, HttpSettings(), served.face.sockets).routes()
    routes += SessionFace(BrowserSessions()).routes()
    served_paths = {each.path.replace(":path", "") for each in routes if isinstance(each, Route)}
    of_documents = {each for each in served_paths if each.startswith("/v1/docs")}
    assert served_paths - of_documents - {"/v1/openapi.json"} == set(paths)
    sockets = {each.path for each in routes if isinstance(each, WebSocketRoute)}
    assert sockets <= set(paths), "a WebSocket shares its path with the event stream"


async def test_a_browser_is_shown_the_document_with_nothing_from_elsewhere(serve: Serve) -> None:
    served = await serve()
    page = await served.http.get("/v1/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "REST API" in page.text
    found = re.findall(r'(?:src|href|spec-url)="([^"]+)"', page.text)
    linked = [urljoin("/v1/docs", each) for each in found]
    assert [each for each in linked if not each.startswith(("/v1/", "data:"))] == []
    needed = {each for each in linked if each.startswith("/v1/")}
    files = {f"/v1/docs/{name}" for name in routes.FILES}
    assert needed == files
    for path in (*needed, "/v1/openapi.json"):  # the last is asked for by docs.js, with a token
        answer = await served.http.get(path)
        assert answer.status_code == 200
        assert answer.content
    plain = await served.http.get(
        "/v1/docs/rapidoc-9.3.8.min.js", headers={"accept-encoding": "identity"}
    )
    assert b"RapiDoc" in plain.content
    assert (await served.http.get("/v1/docs/docs.html")).status_code == 404


async def test_every_payload_is_valid_by_its_schema(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    criteria = [{"containerType": [each.name for each in COLUMNS.container_type]}]
    said: list[dict[str, Any]] = [
        subscribe("1", sinceVersion="0", body=["all"], criteria=criteria, request=0),
        {"type": "request", "id": "1", "payload": {"n": 3}},
        subscribe("2", after="x"),
        {"type": "ping"},
        {"type": "complete", "id": "2"},
    ]
    heard: set[str] = set()
    async with served.socket() as socket:
        for message in said:
            if message.get("payload", {}).get("after") != "x":
                check_payload(message)
            await say(socket, message)
        while not heard >= {"subscribed", "next", "heartbeat", "error", "pong"}:
            message = await hear(socket)
            check_payload(message)
            heard.add(message["type"])


async def test_every_answer_is_valid_by_its_schema(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    for path, name in (
        ("/v1/catalogs/shop", "Catalog"),
        ("/v1/catalogs/shop/schema", "Schema"),
        ("/v1/catalogs/shop/changes?body=all&containerType=ATTRIBUTE&limit=2", "Page"),
        ("/v1/catalogs/shop/changes?sinceVersion=99", "Page"),
        ("/v1/catalogs/ship", "Error"),
        (f"{LIVE}?after=x", "Error"),
    ):
        check((await served.http.get(path)).json(), component(name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Capture", {}),
        ("Subscribe", {"catalog": "shop"}),
        ("Subscribe", {"criteria": [{"operation": ["DELETE"]}]}),
        ("Subscribe", {"body": ["CHANGE"]}),
        ("Cursor", "1.x"),
        ("Error", {"code": "NOTHING"}),
    ],
)
def test_the_schemas_refuse_what_the_server_refuses(name: str, value: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(value, component(name))
