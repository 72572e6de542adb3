"""Messages of a socket, read strictly. Their order and closes on a real socket: rest/test_socket.py."""

from __future__ import annotations

import json

import pytest

from tailrace_server.api.websocket.messages import (
    ID_CHARACTERS_MAX,
    ClientMessage,
    Close,
    CloseCode,
    head,
    parse,
    whole,
)


def test_a_message_is_read_with_what_it_leaves_out() -> None:
    assert parse('{"type":"ping"}') == ClientMessage("ping", "", None)
    text = '{"type":"subscribe","id":"1","payload":{"a":[1]}}'
    assert parse(text) == ClientMessage("subscribe", "1", {"a": [1]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSON"),
        ("[]", "a message must be a JSON object"),
        ('{"id":"1"}', "a message must have a type"),
        ('{"type":"ping","more":1}', "ping: unknown member 'more'"),
        ('{"type":"complete","id":7}', "complete: id must be a text"),
        (json.dumps({"type": "x", "id": "i" * (ID_CHARACTERS_MAX + 1)}), "x: id must be a text"),
    ],
)
def test_what_is_no_message_closes_the_socket_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Close, match=reason) as caught:
        parse(text)
    assert caught.value.code is CloseCode.MALFORMED


def test_ready_parts_make_the_same_message_as_a_whole_one() -> None:
    payload = {"data": {"v": 1}}
    parts = head("next", 'an "id"') + json.dumps(payload).encode() + b"}"
    assert json.loads(parts) == json.loads(whole("next", 'an "id"', payload))
    assert json.loads(whole("connection_ack")) == {"type": "connection_ack"}
