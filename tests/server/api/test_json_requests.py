"""Requests in JSON, filled strictly. The same over HTTP and sockets: rest/test_fuzz.py, test_socket.py."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.v1.change_capture_pb2 import ReadStateRequest, SubscribeRequest
from tailrace.v1.sql_pb2 import QuerySqlRequest, SqlParameter
from tailrace_server.api.json_requests import (
    JSON_VALUES_MAX,
    decode,
    decode_exactly,
    from_json,
    from_query,
    in_json_names,
)
from tailrace_server.api.sql_requests import asked
from tailrace_server.wal.record.json_check import first_non_object
from tailrace_server.wal.record.mutation import columns_of


def filled(value: object) -> SubscribeRequest:
    return from_json(SubscribeRequest, value, criteria_max=2, without=("catalog",))


def test_a_request_is_filled_by_json_names_and_plain_enum_names() -> None:
    request = filled(
        {
            "sinceVersion": "9223372036854775807",
            "sinceIndex": 3,
            "criteria": [{"area": "DATA", "entityType": ["order"]}],
            "body": ["after"],
            "after": None,
        }
    )
    assert (request.since_version, request.since_index) == (2**63 - 1, 3)
    assert request.criteria[0].entity_type == ["order"]
    assert not request.HasField("after")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the request: must be an object, not"),
        (
            {"criteria": [{"where": None}]},
            r"^criteria\[0\].where: null is not a condition; leave it",
        ),
        ({"criteria": [{"whereTree": None}]}, r"^criteria\[0\].whereTree: null is not a condition"),
        ({"criteria": {}}, "criteria: must be a list, not"),
        ({"criteria": [1]}, r"criteria\[0\]: must be an object, not 1"),
        ({"criteria": [{"area": 1}]}, r"criteria\[0\].area: must be one of SCHEMA, DATA"),
        ({"sinceIndex": "x"}, "sinceIndex: must be a whole number, not"),
        ({"after": 7}, "after: must be a text, not 7"),
        (
            {"criteria": [{"primaryKey": ["a", 7]}]},
            r"criteria\[0\].primaryKey\[1\]: must be a text",
        ),
        (
            {"criteria": [{"primaryKey": ["a", "\ud800"]}]},
            r"primaryKey\[1\]: the text cannot be encoded as UTF-8",
        ),
    ],
)
def test_a_value_of_another_type_is_named_by_its_path(value: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        filled(value)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (SubscribeRequest, "whereTree", r"^criteria\[0\].whereTree: null is not a condition"),
        (ReadStateRequest, "whereTree", "^whereTree: null is not a condition"),
        (SubscribeRequest, "criteria", "^criteria: null has no meaning here"),
    ],
)
def test_a_null_in_a_url_is_refused_where_its_absence_would_match_every_row(
    kind: type[SubscribeRequest | ReadStateRequest], name: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        from_query(kind, [(name, "null")], criteria_max=2)


@pytest.mark.parametrize("name", ["catalog", "since_version", "nothing"])
def test_a_field_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        filled({name: "x"})


@pytest.mark.parametrize("data", [b"", b"{", b'"\xff"', b"[" * 100_000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^filter: not JSON"):
        decode(data, "filter")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"a":1', "it ends before it is complete"),
        (b'{"a":"b', "it ends before it is complete"),
        (b'{"a":"\\\\ud800', "it ends before it is complete"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'{"a":"\\\\\\uD83Dx-----------"}', r"half of a surrogate pair, \\uD83D at byte 8"),
        (b'"\\ud83d\\ude00\\udc00"', r"half of a surrogate pair, \\udc00 at byte 13"),
        (b'{"a":1,}', "JSON is malformed"),
    ],
)
def test_what_is_wrong_with_json_is_said_in_words(data: bytes, fault: str) -> None:
    """In requests, and in images that programs write."""
    with pytest.raises(InvalidRequest, match=f"not JSON: .*{fault}"):
        decode(data)
    with pytest.raises(InvalidRequest, match=f"not JSON: .*{fault}"):
        decode(data.decode())
    if data[:1] == b"{":
        with pytest.raises(InvalidRequest, match=f"UTF-8 JSON object: .*{fault}"):
            columns_of(data)
        found = first_non_object(pa.array([b"{}", data], pa.binary()))
        assert found is not None
        assert re.search(fault, found.reason)


def test_an_error_of_the_shared_rules_names_fields_as_json_does() -> None:
    error = in_json_names(InvalidRequest("give at most one of since_version, after and from_time"))
    assert str(error) == "give at most one of sinceVersion, after and fromTime"


def test_very_many_values_are_refused_before_they_are_made() -> None:
    """A list of empty lists takes thirty times its text."""
    data = b"[" + b"[]," * (JSON_VALUES_MAX // 2) + b"0]"
    with pytest.raises(InvalidRequest, match=f"more than {JSON_VALUES_MAX} values"):
        decode(data)
    assert len(decode(b"[" + b'"key",' * 100_000 + b'""]')) == 100_001


LARGE = ["1e99999999999999999999", "-1e-99999999999999999999", "1e1000", "1" * 1_001, "9" * 5_000]


@pytest.mark.parametrize("number", LARGE, ids=[each[:12] for each in LARGE])
def test_a_number_of_too_many_digits_is_refused_wherever_it_is_parsed(number: str) -> None:
    if "99999" in number and "e" in number:
        with pytest.raises(InvalidRequest, match="at most 1,000 digits"):
            decode_exactly(b'{"parameters":{"n":[%b]}}' % number.encode())
    for value in (number, f"[1,{number}]"):
        request = QuerySqlRequest(parameter=[SqlParameter(name="n", value=value)])
        with pytest.raises(
            InvalidRequest, match="parameter 'n': a number may have at most 1,000 digits"
        ):
            asked(request)


def test_a_text_that_utf_8_cannot_hold_is_no_parameter_of_sql() -> None:
    request = QuerySqlRequest(parameter=[SqlParameter(name="n", value='["\\ud800"]')])
    with pytest.raises(InvalidRequest, match="parameter 'n': the text cannot be encoded as UTF-8"):
        asked(request)
