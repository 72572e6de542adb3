"""Subscriptions over a real socket: typed and untyped; the schema follows the log."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cursor import Cursor
from tailrace.position import END
from tailrace_server.api import requests
from tailrace_server.api.graphql.catalog import Asked, GraphqlCatalog, Prepared
from tailrace_server.api.graphql.documents import Document
from tailrace_server.grants.principal import ANONYMOUS, Principal
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.conformance.shop import SHOP, upsert
from tests.server.api.graphql.conftest import PATH, ask, client
from tests.server.api.rest.conftest import closed, hear, say
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Peer
    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

EVERYTHING = """
subscription ($x: Boolean!) {
  live: onCatalogChange(sinceVersion: 0, signals: true) {
    version index ordinal cursor commitTimestamp area operation entityType primaryKey changed
    containerType containerName omittedBytes change before after @include(if: $x) t: afterText
    ...F
  }
}
fragment F on Change { __typename v: version }
"""


async def test_signals_and_every_field_come_in_one_stream(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    count = len(writer.log.expected(()))
    served = await serve()
    async with client(served) as one:
        id = await one.subscribe(EVERYTHING, x=True)
        acknowledgement = await one.payload(id)
        changes: list[Any] = []
        # On a machine that stands still a heartbeat comes among the changes, too.
        while (heartbeat := await one.payload(id))["data"]["live"] or len(changes) < count:
            changes += [heartbeat] if heartbeat["data"]["live"] else []
        await one.complete(id)
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
    assert acknowledgement["data"] == heartbeat["data"] == {"live": None}
    assert acknowledgement["extensions"]["acknowledgement"]["publishedVersion"] == len(SHOP)
    end = Cursor(writer.writer.uuid, len(SHOP), END)
    assert Cursor.parse(heartbeat["extensions"]["heartbeat"]["resumeCursor"]) == end
    assert heartbeat["extensions"]["heartbeat"]["recordsMatched"] == count
    assert [each["data"]["live"]["v"] for each in changes] == [
        version for version, *_ in writer.log.expected(())
    ]


async def test_many_keys_in_variables_are_coerced_in_another_thread_and_mean_the_same(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    coerced = Document.coerced

    def noted(self: Document, *given: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return coerced(self, *given)

    monkeypatch.setattr(Document, "coerced", noted)
    served = await serve()
    writer.write([upsert("7"), upsert("x")])
    async with client(served) as one:
        text = (
            "subscription ($c: [Criteria!]) { onCatalogChange(sinceVersion: 0, criteria: $c)"
            " { primaryKey } }"
        )
        for keys in (10, 5_000):
            id = await one.subscribe(text, c=[{"primaryKey": [str(each) for each in range(keys)]}])
            assert (await one.payload(id))["data"] == {"onCatalogChange": {"primaryKey": "7"}}
    assert threads == [True, False]


async def test_many_keys_hold_their_turn_until_the_subscription_is_open(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    open_subscription = requests.open_subscription

    async def noted(engine: Engine, *given: Any, **named: Any) -> Any:
        held.append(engine.turns.many_keys.locked())
        return await open_subscription(engine, *given, **named)

    monkeypatch.setattr(requests, "open_subscription", noted)
    served = await serve()
    writer.write([upsert("7")])
    keys = [{"primaryKey": [str(each) for each in range(5_000)]}]
    async with client(served) as one:
        for wait in ("", ", waitForVersion: 1, waitMs: 1000"):
            id = await one.subscribe(
                f"subscription ($c: [Criteria!]) {{ onCatalogChange(sinceVersion: 0{wait},"
                " criteria: $c) { primaryKey } }",
                c=keys,
            )
            assert (await one.payload(id))["data"] == {"onCatalogChange": {"primaryKey": "7"}}
    assert held == [True, False], "a wait for a version may take minutes"


async def test_many_keys_in_variables_of_a_query_are_read_in_another_thread_too(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    run = GraphqlCatalog._run

    def noted(self: GraphqlCatalog, *given: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return run(self, *given)

    monkeypatch.setattr(GraphqlCatalog, "_run", noted)
    served = await serve()
    writer.write([upsert("7"), upsert("x")])
    query = "query ($c: [Criteria!]) { changes(criteria: $c) { edges { node { primaryKey } } } }"
    for keys in (10, 5_000):
        criteria = [{"primaryKey": [str(each) for each in range(keys)]}]
        answer = await ask(served, query, c=criteria)
        assert answer == {"changes": {"edges": [{"node": {"primaryKey": "7"}}]}}
    assert threads == [True, False]


async def test_without_signals_only_changes_come(serve: Serve, writer: ModelWriter) -> None:
    served = await serve(heartbeat_interval_s=0.01)
    async with client(served) as one:
        id = await one.subscribe(
            "subscription { onCatalogChange(sinceVersion: 0) { version index } }"
        )
        await until(lambda: served.engine.statistics(ANONYMOUS).heartbeats_sent > 2)
        writer.write([])
        assert await one.payload(id) == {"data": {"onCatalogChange": {"version": 1, "index": 0}}}


async def test_a_typed_field_has_its_entity_type_alone(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    async with client(served) as one:
        id = await one.subscribe(
            'subscription { onProductChange(sinceVersion: 0, criteria: [{primaryKey: ["1"]}]) '
            "{ version operation changed before { price } after { name price } } }"
        )
        found = [each["data"]["onProductChange"] for each in await one.payloads(id, 3)]
    assert found == [
        {
            "version": 1,
            "operation": "UPSERT",
            "changed": None,
            "before": None,
            "after": {"name": "chair", "price": 1},
        },
        {
            "version": 2,
            "operation": "UPSERT",
            "changed": ["price"],
            "before": {"price": 1},
            "after": {"name": "chair", "price": 2},
        },
        {
            "version": 4,
            "operation": "REMOVE",
            "changed": None,
            "before": {"price": None},
            "after": None,
        },
    ]


async def test_the_schema_follows_the_log_and_subscriptions_go_on(
    serve: Serve, writer: ModelWriter
) -> None:
    """A column and an entity type appear without a restart."""
    writer.write([upsert("1", name="chair")])
    served = await serve()
    later = "subscription { onProductChange { after { id colour } } }"
    other = "subscription { onOrderLineChange(sinceVersion: 0) { version after { id } } }"
    async with client(served) as one:
        early = await one.subscribe(
            "subscription { onProductChange(sinceVersion: 0) { version after { name } } }"
        )
        assert (await one.payload(early))["data"]["onProductChange"]["after"] == {"name": "chair"}
        for query, name in ((later, "colour"), (other, "onOrderLineChange")):
            (fault,) = await one.error(await one.subscribe(query))
            assert name in fault["message"]
            assert fault["locations"]
        writer.write([upsert("2", name="table", colour="red"), upsert("7", "order line")])
        assert (await one.payload(early))["data"]["onProductChange"]["after"] == {"name": "table"}
        lines = await one.subscribe(other)
        assert (await one.payload(lines))["data"] == {
            "onOrderLineChange": {"version": 2, "after": {"id": "7"}}
        }
        coloured = await one.subscribe(later.replace("Change {", "Change(sinceVersion: 2) {", 1))
        assert (await one.payload(coloured))["data"]["onProductChange"]["after"] == {
            "id": "2",
            "colour": "red",
        }
        found = await ask(served, '{ __type(name: "Product") { fields { name } } }')
        assert [each["name"] for each in found["__type"]["fields"]][-2:] == ["big", "colour"]


async def test_a_renamed_column_is_read_from_older_rows_too(serve: Serve, log_root: Path) -> None:
    """Also where another column has that name now: the version of a row says which of the two it means."""
    renamed = SchemaMapping.parse("[entity_types.product.columns.title]\nrenamed_from = 'name'")
    for mapping, column in ((None, "name"), (renamed, "title")):
        with LogWriter.open(log_root, "named", mapping=mapping) as writer:
            writer.append([Mutation("product", "1", after=b'{"id":1,"%s":"x"}' % column.encode())])
    served = await serve()
    path = PATH.replace("shop", "named")
    live = "subscription { onProductChange(sinceVersion: 0) { after { title } } }"
    async with client(served, path) as one:
        found = await one.payloads(await one.subscribe(live), 2)
    assert [each["data"]["onProductChange"]["after"] for each in found] == [{"title": "x"}] * 2
    history = "{ productChanges { edges { node { after { title } } } } }"
    edges = (await ask(served, history, path))["productChanges"]["edges"]
    assert [edge["node"]["after"] for edge in edges] == [{"title": "x"}] * 2

    with LogWriter.open(log_root, "named", mapping=renamed) as writer:
        writer.append([Mutation("product", "2", after=b'{"id":2,"title":"y","name":"z"}')])
    observer = observer_of(served.engine, "named")
    await until(lambda: observer.log.view.published == 3)
    history = history.replace("title", "title name")
    edges = (await ask(served, history, path))["productChanges"]["edges"]
    assert [edge["node"]["after"] for edge in edges] == [
        {"title": "x", "name": None},
        {"title": "x", "name": None},
        {"title": "y", "name": "z"},
    ]


async def test_changes_of_the_schema_come_with_what_was_and_what_is(
    serve: Serve, writer: ModelWriter
) -> None:
    """Of the catalog, or of one entity type; nothing else comes with them."""
    writer.write([upsert("1", "box", size=1)], [upsert("2", "lid")])
    writer.write([upsert("1", "box", size=2, colour="red")])
    served = await serve()
    about = "version area entityType primaryKey changed before after"
    async with client(served) as one:
        id = await one.subscribe(
            f"subscription {{ onCatalogSchemaChange(sinceVersion: 0) {{ {about} }} }}"
        )
        every = [each["data"]["onCatalogSchemaChange"] for each in await one.payloads(id, 3)]
    async with client(served) as one:
        id = await one.subscribe(
            f"subscription {{ onBoxSchemaChange(sinceVersion: 0) {{ {about} }} }}"
        )
        boxes = [each["data"]["onBoxSchemaChange"] for each in await one.payloads(id, 2)]
    assert [(each["version"], each["entityType"]) for each in every] == [
        (1, "box"),
        (2, "lid"),
        (3, "box"),
    ]
    assert boxes == [every[0], every[2]]
    added, grown = boxes
    assert {each["area"] for each in every} == {"SCHEMA"}
    assert (added["primaryKey"], added["before"]) == (None, None)
    assert grown["before"] == added["after"]
    assert grown["changed"] == ["colour"]
    names = [column["name"] for column in grown["after"]["columns"]]
    assert names == ["id", "size", "colour"]


async def test_a_value_of_a_widened_column_is_an_error_of_its_field_and_the_subscription_goes_on(
    serve: Serve, writer: ModelWriter
) -> None:
    """Whoever subscribes anew has the new type."""
    writer.write([upsert("1", "box", size=1)])
    served = await serve()
    query = "subscription { onBoxChange(sinceVersion: 1) { after { size } } }"
    async with client(served) as one:
        early = await one.subscribe(query)
        assert (await one.payload(early))["data"]["onBoxChange"]["after"] == {"size": "1"}
        writer.write([upsert("1", "box", size=1.5)], [upsert("1", "box", size=3)])
        unfit, fitting = await one.payloads(early, 2)
        assert unfit["data"]["onBoxChange"]["after"] == {"size": None}
        (fault,) = unfit["errors"]
        assert fault["path"] == ["onBoxChange", "after", "size"]
        assert fault["extensions"] == {"code": "VALUE_INVALID", "retriable": False, "figures": {}}
        assert fitting == {"data": {"onBoxChange": {"after": {"size": "3"}}}}
        late = await one.subscribe(query)
        found = [each["data"]["onBoxChange"]["after"] for each in await one.payloads(late, 3)]
        assert [each["size"] for each in found] == ["1", "1.5", "3"]


async def test_an_equal_selection_is_encoded_once_for_all(
    serve: Serve, writer: ModelWriter
) -> None:
    """Whatever the spelling of the document, and whatever the start."""
    writer.write([upsert(str(number)) for number in range(20)])
    served = await serve()
    spellings = (
        "subscription A { onCatalogChange(sinceVersion: 0) { version after } }",
        "subscription B { onCatalogChange(sinceVersion: 1) { ...F } } "
        "fragment F on CatalogChange { version after }",
        "subscription C($v: Long) "
        "{ onCatalogChange(sinceVersion: $v) { version after version @skip(if: true) } }",
    )
    misses = []
    async with client(served) as another:  # for one alone nothing is kept
        await another.payloads(await another.subscribe(spellings[0]), 21)
        for query in spellings:
            async with client(served) as one:
                await one.payloads(await one.subscribe(query, v=0), 21)
            misses.append(served.engine.statistics(ANONYMOUS).cache.misses)
    assert misses[0] == misses[1] == misses[2]


async def test_contract_46_numbers_above_53_bits_survive(serve: Serve, writer: ModelWriter) -> None:
    """As text; and as JSON on the wire, digit by digit."""
    writer.write([upsert("1", big=2**63 - 1, price=0.1)])
    served = await serve()
    async with client(served) as one:
        await one.subscribe("subscription { onProductChange(sinceVersion: 0) { after { big } } }")
        assert f'"big":{2**63 - 1}' in await one.socket.recv(decode=True)
        id = await one.subscribe(
            'subscription { onCatalogChange(sinceVersion: "1", sinceIndex: 1) { afterText cursor } }'
        )
        change = (await one.payload(id))["data"]["onCatalogChange"]
        assert change["afterText"] == '{"id": "1", "big": 9223372036854775807, "price": 0.1}'


async def test_a_cursor_resumes_where_it_stands(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve()
    first = "subscription { onCatalogChange(sinceVersion: 0) { cursor } }"
    query = "subscription ($c: String) { onCatalogChange(after: $c) { cursor } }"
    count = len(writer.log.expected(()))

    async def cursors(count: int, query: str, **variables: str) -> list[str]:
        async with client(served) as one:
            found = await one.payloads(await one.subscribe(query, **variables), count)
        return [each["data"]["onCatalogChange"]["cursor"] for each in found]

    all = await cursors(count, first)
    for place in (0, 3, count - 2):
        assert await cursors(count - place - 1, query, c=all[place]) == all[place + 1 :]


async def test_the_system_path_tells_of_catalogs(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    path = "/v1/system/graphql"
    async with client(served, path) as one:
        id = await one.subscribe(
            "subscription { onSystemChange(sinceVersion: 0) { version after } }"
        )
        _, created = await one.payloads(id, 2)
        assert created["data"]["onSystemChange"]["version"] == 1
    found = await ask(served, "{ catalogs { name } changes { edges { node { version } } } }", path)
    assert [each["name"] for each in found["catalogs"]] == ["shop"]
    assert found["changes"]["edges"]


async def test_contract_45_a_socket_that_is_not_read_has_one_query_answered_at_a_time(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are not executed before it is read, and end at once where they are completed."""
    prepared: list[Prepared] = []
    executed: list[Prepared] = []
    prepare, execute = GraphqlCatalog.prepare, GraphqlCatalog.execute

    async def preparing(catalog: GraphqlCatalog, asked: Asked, caller: Principal) -> Prepared:
        prepared.append(await prepare(catalog, asked, caller))
        return prepared[-1]

    async def executing(catalog: GraphqlCatalog, one: Prepared, peer: Peer) -> bytes:
        executed.append(one)
        return await execute(catalog, one, peer)

    def waiting() -> set[str]:
        names = {task.get_name() for task in asyncio.all_tasks()}
        return {name.removeprefix("operation ") for name in names if name.startswith("operation ")}

    monkeypatch.setattr(GraphqlCatalog, "prepare", preparing)
    monkeypatch.setattr(GraphqlCatalog, "execute", executing)
    large = "x" * (1 << 20)
    writer.write(*([upsert(str(number), text=large)] for number in range(15)))
    served = await serve()
    async with client(served) as one:
        one.socket.transport.pause_reading()
        ids = [await one.subscribe("{ changes { edges { node { after } } } }") for _ in range(5)]
        await until(lambda: len(prepared) == len(ids))
        (sender,) = served.face.sockets.guard._senders
        await until(lambda: sender.blocked_since is not None)
        assert len(executed) == 1
        assert waiting() == set(ids)
        for id in ids[2:]:
            await one.complete(id)
        await until(lambda: waiting() == set(ids[:2]))
        assert len(executed) == 1
        one.socket.transport.resume_reading()
        for id in ids[:2]:
            assert len((await one.payload(id))["data"]["changes"]["edges"]) == 30
            assert await hear(one.socket) == {"type": "complete", "id": id}
        assert len(executed) == 2
        one.socket.transport.pause_reading()
        await one.subscribe("{ changes { edges { node { after } } } }")
        await one.subscribe("{ changes { edges { node { after } } } }")
        await until(lambda: len(executed) == 3 and sender.blocked_since is not None)
        one.socket.transport.abort()
        await until(lambda: not waiting())
    assert len(executed) == 3


async def test_a_query_on_a_socket_is_answered_and_completed(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    async with client(served) as one:
        id = await one.subscribe("{ catalog { name publishedVersion } }")
        assert (await one.payload(id))["data"]["catalog"] == {"name": "shop", "publishedVersion": 0}
        assert await hear(one.socket) == {"id": id, "type": "complete"}


REFUSED: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    (
        "subscription { onCatalogChange(sinceVersion: -1) { version } }",
        {},
        "INVALID_REQUEST",
        "sinceVersion",
    ),
    (
        'subscription { onCatalogChange(sinceVersion: 1, after: "x") { version } }',
        {},
        "INVALID_REQUEST",
        "sinceVersion and after",
    ),
    (
        'subscription { onCatalogChange(after: "nonsense") { version } }',
        {},
        "CURSOR_INVALID",
        "nonsense",
    ),
    (
        'subscription { onCatalogChange(criteria: [{area: INFRASTRUCTURE, entityType: ["a"]}]) { version } }',
        {},
        "INVALID_REQUEST",
        "criteria[0]",
    ),
    (
        'subscription { onProductChange(criteria: [{}, {entityType: ["order"]}]) { version } }',
        {},
        "INVALID_REQUEST",
        "criteria[1].entityType",
    ),
    (
        "subscription { onProductSchemaChange(criteria: [{area: DATA}]) { version } }",
        {},
        "INVALID_REQUEST",
        "only changes of area SCHEMA",
    ),
    (
        "subscription { onCatalogChange(maxMessageBytes: 1) { version } }",
        {},
        "INVALID_REQUEST",
        "maxMessageBytes",
    ),
    (
        "subscription ($v: Long) { onCatalogChange(sinceVersion: $v) { version } }",
        {"v": 1.5},
        "INVALID_REQUEST",
        "$v",
    ),
    (
        "subscription ($v: Boolean!) { onCatalogChange { version @skip(if: $v) } }",
        {},
        "INVALID_REQUEST",
        "$v",
    ),
    ("subscription { onCatalogChange @skip(if: true) { version } }", {}, "INVALID_REQUEST", ""),
    (
        "subscription A { onCatalogChange { version } } query B { catalogs { name } }",
        {},
        "INVALID_REQUEST",
        "operationName",
    ),
    (
        "subscription { onCatalogChange { version } onProductChange { version } }",
        {},
        "INVALID_REQUEST",
        "one",
    ),
    ("subscription { onCatalogChange { nothing } }", {}, "INVALID_REQUEST", "nothing"),
    ("subscription { onNothingChange { version } }", {}, "INVALID_REQUEST", "onNothingChange"),
    ("subscription { onCatalogChange(since: 1) { version } }", {}, "INVALID_REQUEST", "since"),
    (
        "subscription { onCatalogChange(criteria: [{operation: [DELETE]}]) { version } }",
        {},
        "INVALID_REQUEST",
        "DELETE",
    ),
    (
        "subscription ($c: [Criteria!]) { onCatalogChange(criteria: $c) { version } }",
        {"c": [{"where": 1}]},
        "INVALID_REQUEST",
        "$c",
    ),
    ("subscription {", {}, "INVALID_REQUEST", "Syntax"),
    ("fragment F on Change { version }", {}, "INVALID_REQUEST", ""),
    ("", {}, "INVALID_REQUEST", "Syntax"),
)


async def test_what_has_no_meaning_ends_its_operation_alone(
    serve: Serve, writer: ModelWriter
) -> None:
    """With the code of the one error table, and a message that names what is wrong."""
    writer.write([upsert("1")])
    served = await serve()
    async with client(served) as one:
        for query, variables, code, name in REFUSED:
            first, *_ = await one.error(await one.subscribe(query, **variables))
            assert first["extensions"]["code"] == code, query
            assert name in first["message"], (query, first)
        id = await one.subscribe("subscription { onCatalogChange(sinceVersion: 0) { index } }")
        assert len(await one.payloads(id, 2)) == 2
    assert not served.guards


async def test_more_criteria_than_one_request_may_have_are_refused_by_name(
    serve: Serve, writer: ModelWriter
) -> None:
    """Those of a variable before any of them is looked at: none of these would pass by itself."""
    served = await serve()
    many = {"c": [{"nonsense": 1}] * 1_001}
    literal = f"(criteria: [{'{}' * 1_001}])"
    expected = "1001 in one request, the limit is 1000 (criteria)"
    async with client(served) as one:
        for query, variables in (
            ("subscription ($c: [Criteria!]) { onCatalogChange(criteria: $c) { version } }", many),
            ("query ($c: [Criteria!]) { changes(criteria: $c) { truncated } }", many),
            (f"subscription {{ onCatalogChange{literal} {{ version }} }}", {}),
        ):
            (error,) = await one.error(await one.subscribe(query, **variables))
            assert error["extensions"]["code"] == "INVALID_REQUEST"
            assert expected in error["message"]
        id = await one.subscribe(f"{{ changes{literal} {{ truncated }} }}")
        (error,) = (await one.payload(id))["errors"]
        assert expected in error["message"]


async def test_a_catalog_that_is_not_there_is_named(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    async with client(served, "/v1/catalogs/nothing/graphql") as one:
        (fault,) = await one.error(
            await one.subscribe("subscription { onCatalogChange { version } }")
        )
    assert fault["extensions"]["code"] == "CATALOG_UNKNOWN"
    assert fault["extensions"]["figures"] == {"catalog": "nothing", "known": "shop"}


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"query": 1},
        {"query": "{ catalogs { name } }", "variables": []},
        {"query": "{ catalogs { name } }", "operationName": 1},
        {"query": "", "extensions": "x"},
    ],
)
async def test_contract_44_a_subscribe_of_another_shape_closes_the_socket(
    serve: Serve, writer: ModelWriter, payload: dict[str, Any]
) -> None:
    served = await serve()
    async with client(served) as one:
        await say(one.socket, {"type": "subscribe", "id": "1", "payload": payload})
        code, _ = await closed(one.socket)
    assert code == 4400


async def test_contract_44_subscribes_in_flight_with_one_id_close_the_socket(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    payload = {"query": "subscription { onCatalogChange { version } }"}
    async with client(served) as one:
        for _ in range(2):
            await say(one.socket, {"type": "subscribe", "id": "1", "payload": payload})
        code, _ = await closed(one.socket)
    assert code == 4409


async def test_contract_44_a_complete_while_the_document_is_looked_at_cancels(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    async with client(served) as one:
        for _ in range(20):
            id = await one.subscribe(
                "subscription { onCatalogChange(sinceVersion: 0) { version } }"
            )
            await one.complete(id)
        last = await one.subscribe("{ catalogs { name } }")
        await one.payload(last)
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)


async def test_contract_25_a_dropped_catalog_ends_its_subscriptions(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    served = await serve()
    async with client(served) as one:
        id = await one.subscribe("subscription { onCatalogChange { version } }")
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 1)
        await asyncio.to_thread(drop_catalog, log_root, "shop")
        (fault,) = await one.error(id)
        assert fault["extensions"]["code"] == "CATALOG_REPLACED"
