"""Which format a client is given. Bodies and parameters over real HTTP: test_history.py, test_fuzz.py."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tailrace.errors import InvalidRequest
from tailrace_server.api.http.requests import accepted, no_parameters, parameters

OFFERED = ("application/json", "application/x-ndjson")


def request(accept: str | None = None, query: bytes = b"") -> Request:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    return Request({"type": "http", "headers": headers, "query_string": query})


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/*;q=0.5, application/x-ndjson;q=0.4", "application/json"),
        ("application/json;q=0.1, application/x-ndjson;q=0.9", "application/x-ndjson"),
        ("application/json;q=0, */*", "application/json"),
        ("text/html, APPLICATION/X-NDJSON ; q=0.2", "application/x-ndjson"),
        ("*/*, application/x-ndjson", "application/x-ndjson"),
    ],
)
def test_the_best_liked_format_is_chosen(accept: str | None, chosen: str) -> None:
    assert accepted(request(accept), OFFERED) == chosen


def test_a_client_that_takes_nothing_of_it_is_told_what_there_is() -> None:
    with pytest.raises(HTTPException) as caught:
        accepted(request("text/html, application/json;q=0"), OFFERED)
    assert caught.value.status_code == 406
    assert caught.value.detail == f"the formats are {', '.join(OFFERED)}"


def test_parameters_keep_their_order_and_bytes_that_are_no_text_are_refused() -> None:
    assert parameters(request(query=b"b=1&a=&b=%C3%A9")) == [("b", "1"), ("a", ""), ("b", "é")]
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        parameters(request(query=b"a=%ff"))
    with pytest.raises(InvalidRequest, match="more than 1000 parameters"):
        parameters(request(query=b"&".join([b"a=1"] * 1_001)))
    with pytest.raises(InvalidRequest, match="limit: this path takes no parameters"):
        no_parameters(request(query=b"limit=1"))
