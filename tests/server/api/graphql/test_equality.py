"""What a compiled selection sends is what Strawberry makes of the same document, event by event."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from graphql import ExecutionResult, GraphQLObjectType
from graphql.execution import Executor, execute_subscription_event
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import wire
from tailrace.v1.capture_fields_pb2 import SubscribeResponseParts
from tailrace_server.api.graphql.catalog import response
from tailrace_server.api.graphql.codec import SEPARATOR
from tailrace_server.api.graphql.documents import read
from tailrace_server.api.settings import HttpSettings
from tailrace_server.codecs import PROTOBUF
from tests.server.api.graphql import generated
from tests.server.api.graphql.generated import BUILT, CATALOG, Written

if TYPE_CHECKING:
    from tailrace.capture import Capture
    from tailrace_server.api.graphql.documents import Compiled, Document
    from tailrace_server.codecs import CaptureColumns

LIMITS = HttpSettings()


def compiled(written: Written) -> tuple[Document, Compiled]:
    """Return a document and its selection; every generated one is valid."""
    document = read(BUILT, written.text, LIMITS)
    operation = document.operation(None)
    values = document.coerced(operation, written.variables)
    return document, document.compiled(operation, values)[0]


def captures_of(data: bytes) -> tuple[Capture, ...]:
    """Return the captures of frames of the protobuf codec."""
    return wire.captures(SubscribeResponseParts.FromString(data).captures, CATALOG)


def executed(document: Document, variables: dict[str, Any], columns: CaptureColumns) -> list[Any]:
    """Return what Strawberry sends for the same captures."""
    executor = Executor.build(document.built.core, document.node, raw_variable_values=variables)
    assert isinstance(executor, Executor), executor
    out = []
    for capture in captures_of(b"".join(PROTOBUF.encode(columns).to_pylist())):
        result = execute_subscription_event(executor.build_per_event_executor(capture))
        assert isinstance(result, ExecutionResult)
        out.append(told(msgspec.json.encode(response(result))))
    return out


def told(payload: bytes) -> Any:
    """Return a payload with the order of its members and the digits of its whole numbers."""
    return json.loads(payload, object_pairs_hook=lambda members: members)


@given(
    written=generated.documents(),
    captures=generated.rows,
    by_column=st.booleans(),
    omitted=st.integers(1, 2**40),
)
@settings(max_examples=100)
def test_a_compiled_selection_sends_what_strawberry_makes(
    written: Written, captures: list[dict[str, Any]], by_column: bool, omitted: int
) -> None:
    document, selection = compiled(written)
    bodies = {*selection.bodies}
    columns = generated.columns(captures, bodies, by_column=by_column)
    frames = selection.codec.encode(columns).to_pylist()
    assert all(frame.endswith(SEPARATOR) and frame.count(SEPARATOR) == 1 for frame in frames)
    assert [told(frame[:-1]) for frame in frames] == executed(document, written.variables, columns)

    header = generated.columns(captures[:1], set(), by_column=by_column)
    (frame,) = selection.codec.encode(header).to_pylist()
    shown = selection.codec.with_omitted(frame, omitted)
    (capture,) = PROTOBUF.encode(header).to_pylist()
    (found,) = captures_of(PROTOBUF.with_omitted(capture, omitted))
    executor = Executor.build(
        document.built.core, document.node, raw_variable_values=written.variables
    )
    assert isinstance(executor, Executor)
    result = execute_subscription_event(executor.build_per_event_executor(found))
    assert isinstance(result, ExecutionResult)
    assert told(shown[:-1]) == told(msgspec.json.encode(response(result)))


@pytest.mark.parametrize("type_name", ["CatalogChange", "ProductChange", "OrderLineChange"])
def test_every_field_of_a_change_has_a_place_in_a_frame(type_name: str) -> None:
    """Also one that is new: no subscription is ever executed."""
    made = BUILT.core.type_map[type_name]
    assert isinstance(made, GraphQLObjectType)
    fields = made.fields
    inner = {"before": "{ id }", "after": "{ id }"} if type_name != "CatalogChange" else {}
    selected = " ".join(f"{name} {inner.get(name, '')}" for name in fields)
    written = Written(f"subscription {{ on{type_name} {{ {selected} }} }}", {})
    assert len(compiled(written)[1].codec._members) == len(fields)


@given(written=generated.documents(), other=generated.documents())
@settings(max_examples=30)
def test_what_differs_in_what_is_sent_never_shares_frames(written: Written, other: Written) -> None:
    """The engine keeps frames by the name of their codec; whatever else a document says makes none of it."""
    (_, one), (_, two) = compiled(written), compiled(other)
    _, again = compiled(Written(f"# another text\n{written.text}", written.variables))
    assert again.codec.name == one.codec.name
    same = one.codec._template == two.codec._template
    assert same or one.codec.name != two.codec.name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{ version }", "{ ...F } } fragment F on Change { version "),
        ("{ version index }", "{ version ... on Change { version index } index }"),
        ("{ version }", "{ version cursor @skip(if: true) }"),
    ],
)
def test_equal_selections_of_different_documents_share_their_frames(one: str, other: str) -> None:
    texts = [f"subscription {{ onProductChange {each} }}" for each in (one, other)]
    first, second = (compiled(Written(text, {}))[1] for text in texts)
    assert first.codec.name == second.codec.name
