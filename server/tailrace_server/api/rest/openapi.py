"""The OpenAPI 3.1 document of the REST face, generated from the code; served at ``/v1/openapi.json``."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, Final

from tailrace.errors import InvalidRequest
from tailrace_server.api.errors import HTTP_OWN, HTTP_STATUS, PROBLEM_TYPE
from tailrace_server.api.http.event_streams import EVENTS_TYPE
from tailrace_server.api.http.requests import ARROW_TYPE, CLOUD_TYPE, JSON_TYPE, LINES_TYPE
from tailrace_server.api.rest import components
from tailrace_server.api.rest.history import HEADERS
from tailrace_server.api.rest.sql import SQL_HEADERS
from tailrace_server.api.rest.state import IN_PATH, IN_PATH_OF_ROW, STATE_HEADERS

_CATALOG: Final = {
    "name": "catalog",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
}
_TAGS: Final = {
    "callers": "Tickets and sessions of callers.",
    "catalogs": "The catalogs that are served.",
    "tables": "Rows as of one version.",
    "sql": "Statements over tables, their past and their changes.",
    "history": "Closed ranges, in either direction.",
    "live": "Live changes, as server-sent events.",
    "subscriptions": "Named subscriptions: places of readers, kept with the log.",
}
_REFUSED: Final = (400, 401, 403, 404, 406, 409, 410, 429, 500, 503)
"""Error statuses that any operation may return; the error table has others that the server never sends."""
_REFUSED_BODY: Final = (408, 413, 415)
"""Additional error statuses of an operation whose request has a body."""
_REPEATED: Final = "May be repeated; any of the values matches."


def reference(name: str) -> dict[str, Any]:
    """Return a JSON reference to a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    found = components.schemas(reference)
    paths: dict[str, Any] = {
        "/v1/tickets": {
            "post": _get(
                "getTicket",
                "callers",
                "A ticket for one event stream, whose EventSource cannot send a header",
                _json(reference("Ticket")),
            )
        },
        "/v1/session": {
            "post": _get(
                "beginSession",
                "callers",
                "A cookie that opens event streams; a newer token extends it",
                _json(reference("Session")),
            ),
            "delete": _ended(
                _get("endSession", "callers", "End the session of the cookie, and its streams", {})
            ),
        },
        "/v1/catalogs": {
            "get": _get("listCatalogs", "catalogs", "The catalogs that are served now", _list())
        },
        "/v1/catalogs/{catalog}": {
            "parameters": [_CATALOG],
            "get": _get(
                "getCatalog",
                "catalogs",
                "The present state of a catalog",
                _json(reference("Catalog")),
            ),
        },
        "/v1/catalogs/{catalog}/schema": {
            "parameters": [_CATALOG],
            "get": {
                **_get(
                    "getSchema", "catalogs", "Entity types and columns", _json(reference("Schema"))
                ),
                "parameters": [_query("version", {"type": "integer", "minimum": 1})],
            },
        },
    }
    paths |= _tables(found["ReadState"])
    paths |= _sql()
    paths |= _named()
    for base, name in (("/v1/catalogs/{catalog}", "Changes"), ("/v1/system", "SystemChanges")):
        shared = {"parameters": [_CATALOG]} if "{" in base else {}
        paths[f"{base}/changes"] = {
            **shared,
            "get": {
                **_get(f"read{name}", "history", "A closed range of history", _changes()),
                "parameters": _parameters(found["ReadChanges"], found["Criteria"]),
            },
        }
        paths[f"{base}/changes/query"] = {
            **shared,
            "post": _get(
                f"query{name}",
                "history",
                "The same, for requests that are too long for a URL",
                _changes(),
                body="ReadChanges",
            ),
        }
        paths[f"{base}/changes/live"] = {
            **shared,
            "get": {
                **_get(f"follow{name}", "live", "Live, as server-sent events", _events()),
                "parameters": [
                    *_parameters(found["Subscribe"], found["Criteria"], without="request"),
                    {**_query("Last-Event-ID", reference("Cursor")), "in": "header"},
                    _query("lastEventId", reference("Cursor")),
                ],
            },
            "post": _get(
                f"follow{name}By",
                "live",
                "The same, for requests that are too long for a URL",
                _events(),
                body="Subscribe",
            ),
        }
        unchanged = {"description": "The tag of If-None-Match is still that of the range."}
        paths[f"{base}/changes"]["get"]["responses"]["304"] = unchanged
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tailrace",
            "version": version("tailrace"),
            "description": "Tables, history and live changes of catalogs. The payloads of the WebSocket on "
            "the live path are components, too; docs/rest.md describes its messages.",
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": found,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _tables(request: dict[str, Any]) -> dict[str, Any]:
    """Return the paths of a table and of one row."""

    def asked(without: tuple[str, ...]) -> list[dict[str, Any]]:
        members = request["properties"]
        return [_query(name, each) for name, each in members.items() if name not in without]

    headers = {name: {"schema": {"type": "string"}} for name in (*STATE_HEADERS, "ETag")}
    page = {
        JSON_TYPE: {"schema": reference("TablePage")},
        LINES_TYPE: {"schema": {"type": "string"}},
        ARROW_TYPE: {"schema": {"type": "string", "contentMediaType": ARROW_TYPE}},
    }
    row = {JSON_TYPE: {"schema": reference("TableRow")}}
    table, key = ({**_CATALOG, "name": name} for name in ("entityType", "primaryKey"))
    found: dict[str, Any] = {
        "/v1/catalogs/{catalog}/state/{entityType}": {
            "parameters": [_CATALOG, table],
            "get": {
                **_get(
                    *("readTable", "tables", "The rows of an entity type as of one version"),
                    {"content": page, "headers": headers},
                ),
                "parameters": asked(IN_PATH),
            },
        },
        "/v1/catalogs/{catalog}/state/{entityType}/{primaryKey}": {
            "parameters": [_CATALOG, table, key],
            "get": {
                **_get("readRow", "tables", "One row of it", {"content": row, "headers": headers}),
                "parameters": asked(IN_PATH_OF_ROW),
            },
        },
    }
    unchanged = {"description": "The tag of If-None-Match is still that of the rows."}
    late = {"description": _codes(504), **_problem()}
    for each in found.values():
        each["get"]["responses"] |= {"304": unchanged, "504": late}
    return found


def _sql() -> dict[str, Any]:
    """Return the path of SQL statements."""
    content = {
        JSON_TYPE: {"schema": reference("SqlAnswer")},
        LINES_TYPE: {"schema": {"type": "string"}},
        ARROW_TYPE: {"schema": {"type": "string", "contentMediaType": ARROW_TYPE}},
    }
    headers = {name: {"schema": {"type": "string"}} for name in SQL_HEADERS}
    found = {"content": content, "headers": headers}
    post = _get("querySql", "sql", "The answer to a statement in SQL", found, body="QuerySql")
    post["responses"]["504"] = {"description": _codes(504), **_problem()}
    return {"/v1/catalogs/{catalog}/sql": {"parameters": [_CATALOG], "post": post}}


def _named() -> dict[str, Any]:
    """Return the paths of named subscriptions."""
    tag, one = "subscriptions", _json(reference("NamedSubscription"))
    listed = {"subscriptions": {"type": "array", "items": reference("NamedSubscription")}}
    cursor = _json({"type": "object", "properties": {"cursor": reference("Cursor")}})
    base = "/v1/catalogs/{catalog}/subscriptions"
    name = {**_CATALOG, "name": "name"}
    created = _get(
        *("createSubscription", tag, "A named subscription is created", one),
        body="CreateSubscription",
    )
    created["responses"]["201"] = created["responses"].pop("200")
    listing = _json({"type": "object", "properties": listed, "required": ["subscriptions"]})
    gone = _ended(_get("deleteSubscription", tag, "Delete the subscription and its place", {}))
    reset = ("resetSubscription", tag, "Move it to another place; its reader is ended", one)
    acknowledged = ("acknowledge", tag, "Move its place forward, durably", cursor)
    return {
        base: {
            "parameters": [_CATALOG],
            "get": _get("listSubscriptions", tag, "The named subscriptions", listing),
            "post": created,
        },
        f"{base}/{{name}}": {
            "parameters": [_CATALOG, name],
            "get": _get("getSubscription", tag, "One of them", one),
            "delete": gone,
        },
        f"{base}/{{name}}/reset": {
            "parameters": [_CATALOG, name],
            "post": _get(*reset, body="ResetSubscription"),
        },
        f"{base}/{{name}}/pause": {
            "parameters": [_CATALOG, name],
            "post": _get("pauseSubscription", tag, "Pause: it takes no readers", one),
        },
        f"{base}/{{name}}/resume": {
            "parameters": [_CATALOG, name],
            "post": _get("resumeSubscription", tag, "Resume: it takes readers again", one),
        },
        f"{base}/{{name}}/acknowledge": {
            "parameters": [_CATALOG, name],
            "post": _get(*acknowledged, body="Acknowledge"),
        },
    }


def _problem() -> dict[str, Any]:
    return {"content": {PROBLEM_TYPE: {"schema": reference("Error")}}}


def _get(
    operation: str, tag: str, summary: str, answer: dict[str, Any], *, body: str | None = None
) -> dict[str, Any]:
    """Return an operation; ``body`` names the component of its request body, if it has one."""
    problem = _problem()
    statuses = sorted((*_REFUSED, *(() if body is None else _REFUSED_BODY)))
    refused = {str(status): {"description": _codes(status), **problem} for status in statuses}
    asked = {} if body is None else {"requestBody": _body(body)}
    return {
        **asked,
        "operationId": operation,
        "tags": [tag],
        "summary": summary,
        "responses": {"200": {"description": summary, **answer}, **refused},
    }


def _ended(operation: dict[str, Any]) -> dict[str, Any]:
    """Return an operation changed to status 204, for a response without a body."""
    responses = dict(operation["responses"])
    return {**operation, "responses": {"204": responses.pop("200"), **responses}}


def _codes(status: int) -> str:
    codes = {cls.code for cls, each in HTTP_STATUS.items() if each == status}
    if status in HTTP_OWN:
        codes.add(InvalidRequest.code)
    return ", ".join(sorted(codes))


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {JSON_TYPE: {"schema": schema}}}


def _list() -> dict[str, Any]:
    catalogs = {"catalogs": {"type": "array", "items": reference("Catalog")}}
    return _json({"type": "object", "properties": catalogs, "required": ["catalogs"]})


def _changes() -> dict[str, Any]:
    content: dict[str, Any] = {
        JSON_TYPE: {"schema": reference("Page")},
        LINES_TYPE: {"schema": {"type": "string"}},
        CLOUD_TYPE: {"schema": {"type": "array", "items": reference("CloudEvent")}},
        ARROW_TYPE: {"schema": {"type": "string", "contentMediaType": ARROW_TYPE}},
    }
    headers = {name: {"schema": {"type": "string"}} for name in (*HEADERS, "ETag")}
    return {"content": content, "headers": headers}


def _events() -> dict[str, Any]:
    return {"content": {EVENTS_TYPE: {"schema": {"type": "string"}}}}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, **_json(reference(name))}


def _parameters(
    request: dict[str, Any], criteria: dict[str, Any], *, without: str = ""
) -> list[dict[str, Any]]:
    """Return the members of a request as URL parameters, together with the members of one criteria."""
    members = {**criteria["properties"], **request["properties"]}
    members["criteria"] = {"type": "string", "contentMediaType": JSON_TYPE}
    return [_query(name, schema) for name, schema in members.items() if name != without]


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if name == "whereTree":
        schema = {"type": "string", "contentMediaType": JSON_TYPE, "contentSchema": schema}
    found: dict[str, Any] = {"name": name, "in": "query", "schema": schema}
    if schema.get("type") == "array":
        found |= {"description": _REPEATED, "style": "form", "explode": True}
    return found
