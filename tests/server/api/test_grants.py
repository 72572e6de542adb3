"""Two principals on one server: of what is not granted no byte comes to the one, wherever it asks."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.routing import Route

import tailrace
from tailrace.criteria import Content, Criteria, Operation
from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.access.configured import Access
from tailrace_server.access.settings import AccessSettings
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.issuer import TokenIssuer, issuing
from tests.support.model import ModelLog, ModelMutation
from tests.support.polling import until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tailrace_server.api.server.http import HttpFace

SECRET = "vault"
"""Part of every name and value that the customer is not granted."""
POLICY = """
[[grant]]
who.issuer = "{issuer}"
who.claims = {{ role = "customer" }}
catalogs = "shop"
entity_types = "parcel"
hidden_columns = "vaultcolumn"
primary_key = "{{sub}}"

[[grant]]
who.issuer = "{issuer}"
who.claims = {{ role = "tenant" }}
catalogs = "shop"
entity_types = "parcel"
hidden_columns = "vaultcolumn"
where = "id = {{sub}} AND vaultcolumn <> 'vaultvalue-1'"

[[grant]]
who.issuer = "{issuer}"
who.claims = {{ role = "keeper" }}
catalogs = "shop"
entity_types = "parcel"
hidden_columns = "vaultcolumn"
actions = ["subscribe", "named"]

[[grant]]
who.issuer = "{issuer}"
who.claims = {{ role = "root" }}
catalogs = "*"
actions = ["subscribe", "history", "schema", "statistics", "operate"]
"""


@dataclass
class Granting:
    """A server with a policy, on both listeners."""

    engine: Engine
    face: HttpFace
    url: str
    target: str
    issuer: TokenIssuer
    policy: Path

    def token(self, role: str) -> str:
        return self.issuer.token(sub="anna", role=role)

    def http(self, role: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.token(role)}"}
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, headers=headers)


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with issuing() as found:
        yield found


@pytest.fixture
async def granting(log_root: Path, tmp_path: Path, issuer: TokenIssuer) -> AsyncIterator[Granting]:
    ModelWriter(log_root, "vaultcatalog", ModelLog()).writer.close()
    writer = ModelWriter(log_root, "shop", ModelLog())
    parcel: dict[str, object] = {"id": "anna", "status": "sent", "vaultcolumn": "vaultvalue-1"}
    there = parcel | {"status": "there", "vaultcolumn": "vaultvalue-4"}
    writer.write(
        [
            ModelMutation("parcel", "anna", Operation.UPSERT, None, parcel),
            ModelMutation(
                "parcel", "vaultkey", Operation.UPSERT, None, parcel | {"id": "vaultkey"}
            ),
            ModelMutation("vaultentity", "7", Operation.UPSERT, None, {"id": "vaultvalue-2"}),
        ],
        # What is hidden changes beside what is not: its name is not told.
        [ModelMutation("parcel", "anna", Operation.UPSERT, parcel, there)],
        # Of a change of what is hidden alone nothing is told.
        [
            ModelMutation(
                "parcel", "anna", Operation.UPSERT, there, there | {"vaultcolumn": "vaultvalue-3"}
            )
        ],
    )
    file = tmp_path / "policy.toml"
    settings = issuer.settings(tmp_path, keys=f"{issuer.address}/jwks")
    file.write_text(POLICY.format(issuer=issuer.address))
    access = Access(AccessSettings(identities=settings, policy=file))
    async with AsyncExitStack() as stack:
        stack.callback(writer.writer.close)
        engine = await stack.enter_async_context(
            Engine(log_root, EngineSettings(heartbeat_interval_s=0.05))
        )
        watch = asyncio.create_task(access.run(engine))
        stack.callback(watch.cancel)
        face = await stack.enter_async_context(listening(engine, door=access.door))
        server = GrpcServer(engine, door=access.door)
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.stop, 0.5)
        url = f"http://127.0.0.1:{face.address.port}"
        yield Granting(engine, face, url, f"127.0.0.1:{port}", issuer, file)


FORMS = (
    "application/json",
    "application/x-ndjson",
    "application/vnd.apache.arrow.stream",
    "application/cloudevents-batch+json",
    "text/html",
    "text/event-stream",
)
INTROSPECTION = (
    "{ __schema { types { name enumValues { name } fields { name } inputFields { name } } } }"
)
TABLE = "{ parcels { edges { node { primaryKey changed after { id status } } } } }"
HISTORY = "{ changes(first: 50) { edges { node { entityType primaryKey changed before after } } } }"


async def test_contract_47_no_byte_of_what_is_not_granted_comes_over_http(
    granting: Granting,
) -> None:
    told: dict[str, dict[str, bytes]] = {"customer": {}, "tenant": {}, "root": {}}
    for role, found in told.items():
        # What both are told alike, and forms that are made of the same captures, need not be asked for again.
        forms, begin = (FORMS[:2], "/v1/catalogs/") if role == "tenant" else (FORMS, "")
        async with granting.http(role) as http:
            for route in granting.face.routes:
                if not isinstance(route, Route) or not route.path.startswith(begin):
                    continue
                if "GET" in (route.methods or ()):
                    names = {"name": "page.css", "entityType": "parcel", "primaryKey": "anna"}
                    path = route.path.replace(":path", "").format(catalog="shop", **names)
                    for form in forms:
                        found[f"{path} as {form}"] = await _begin_of(http, path, form)
            for body in ("body=all", "body=all&values=decoded", "containerType=ATTRIBUTE"):
                path = f"/v1/catalogs/shop/changes?{body}"
                for form in forms:
                    found[f"{path} as {form}"] = await _begin_of(http, path, form)
            for base in ("/v1/catalogs/shop", "/v1/system"):
                for query in (INTROSPECTION, HISTORY, TABLE, "{ schema { entityTypes { name } } }"):
                    answer = await http.post(f"{base}/graphql", json={"query": query})
                    found[f"{base} {query}"] = answer.content
    for role in ("customer", "tenant"):
        assert {path for path, data in told[role].items() if SECRET.encode() in data} == set()
    # The other is told all of it, so what is looked for is there to be found.
    seen = {where for where, data in told["root"].items() if SECRET.encode() in data}
    assert len(seen) > 15, seen
    changes = json.loads(told["customer"]["/v1/catalogs/shop/changes?body=all as application/json"])
    rows = [each for each in changes["captures"] if each["area"] == "DATA"]
    assert [each["after"] for each in rows] == [
        {"id": "anna", "status": "sent"},
        {"id": "anna", "status": "there"},
    ]
    assert [each["changed"] for each in rows] == [None, ["status"]]
    # The row enters by a change of what is hidden, and what it was before is not told.
    changes = json.loads(told["tenant"]["/v1/catalogs/shop/changes?body=all as application/json"])
    (entered,) = (each for each in changes["captures"] if each["area"] == "DATA")
    fields = ("transition", "changed", "change", "before", "after")
    there = {"id": "anna", "status": "there"}
    assert [entered.get(name) for name in fields] == ["ENTER", None, None, None, there]
    table = json.loads(told["customer"]["/v1/catalogs/shop/state/parcel as application/json"])
    assert [each["after"] for each in table["rows"]] == [{"id": "anna", "status": "there"}]


async def _begin_of(http: httpx.AsyncClient, path: str, form: str) -> bytes:
    """Return an answer, or what comes of an endless one in a while: a stream beats every 50 ms."""
    data = b""
    async with http.stream("GET", path, headers={"accept": form}) as answer:
        endless = "event-stream" in answer.headers.get("content-type", "")
        async for part in answer.aiter_bytes():
            data += part
            if endless and data.count(b"event: heartbeat") > 1:
                break
    return data


async def test_contract_47_no_byte_of_what_is_not_granted_comes_over_grpc(
    granting: Granting,
) -> None:
    told = {}
    for role in ("customer", "tenant", "root"):
        found: list[object] = []
        async with tailrace.connect(granting.target, token=granting.token(role)) as client:
            found.append(await client.list_catalogs())
            found.append(await client.get_schema("shop"))
            async with client.read_changes("shop", content=Content.BODY) as history:
                found += [history.header, *[capture async for capture in history]]
            async with client.state("shop", "parcel") as state:
                found += [state.header, *[row async for row in state]]
            async with client.subscribe("shop", since=0, content=Content.BODY) as stream:
                found.append(stream.acknowledgement)
                async with asyncio.timeout(PATIENCE_S):
                    async for capture in stream:
                        found.append(capture)
                        if capture.version == 3:
                            break
        told[role] = repr(found)
    assert SECRET not in told["customer"] + told["tenant"]
    assert "status" in told["tenant"]
    assert told["root"].count(SECRET) > 10


async def test_an_answer_that_is_kept_counts_for_who_is_granted_the_same(
    granting: Granting,
) -> None:
    """Two people at one browser, or one whose grants have changed: each is asked for an answer of its own."""
    path = "/v1/catalogs/shop/changes?untilVersion=2&body=after"
    async with granting.http("root") as root, granting.http("customer") as customer:
        whole, cut = await root.get(path), await customer.get(path)
        tag = whole.headers["etag"]
        assert "private" in whole.headers["cache-control"]
        assert "authorization" in whole.headers["vary"].lower()
        again = await customer.get(path, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (200, cut.content)
        for http, mine in ((root, tag), (customer, cut.headers["etag"])):
            assert (await http.get(path, headers={"if-none-match": mine})).status_code == 304
        text = granting.policy.read_text()
        granting.policy.write_text(text.replace('hidden_columns = "vaultcolumn"', "bodies = true"))

        async def shown() -> bool:
            return b"vaultvalue" in (await customer.get(path)).content

        await until_answered(shown)
        kept = await customer.get(path, headers={"if-none-match": cut.headers["etag"]})
        assert kept.status_code == 200


async def test_what_is_refused_is_refused_alike_whether_or_not_it_exists(
    granting: Granting,
) -> None:
    async def refusal(catalog: str, **asked: Any) -> str:
        with pytest.raises(NotPermitted) as refused:
            async with client.subscribe(catalog, [Criteria(**asked)] if asked else ()):
                pass
        return str(refused.value)

    async with tailrace.connect(granting.target, token=granting.token("customer")) as client:
        pairs = (
            (await refusal("vaultcatalog"), await refusal("nowhere"), ("vaultcatalog", "nowhere")),
            (
                await refusal("shop", entity_type=("vaultentity",)),
                await refusal("shop", entity_type=("nothing",)),
                ("vaultentity", "nothing"),
            ),
            (
                await refusal("shop", primary_key=("vaultkey",)),
                await refusal("shop", primary_key=("nobody",)),
                ("vaultkey", "nobody"),
            ),
        )
        for there, not_there, (name, other) in pairs:
            assert there.replace(name, other) == not_there
        with pytest.raises(NotPermitted, match="column 'vaultcolumn' is not granted"):
            async with client.subscribe("shop", [Criteria(container_name=("vaultcolumn",))]):
                pass


async def test_contract_47_a_name_is_not_made_of_a_condition_on_what_is_hidden(
    granting: Granting,
) -> None:
    """It could never be read; and it is judged as the criteria of a subscription are."""
    where = "vaultcolumn = 'vaultvalue-1'"
    body = {"name": "mine", "criteria": [{"entityType": ["parcel"], "where": where}]}
    path = "/v1/catalogs/shop/subscriptions"
    async with (
        tailrace.connect(granting.target, token=granting.token("keeper")) as client,
        granting.http("keeper") as http,
    ):
        for wrong, error, status in (
            (where, NotPermitted, 403),
            ("stat = '1'", InvalidRequest, 400),
            ("status >", InvalidRequest, 400),
        ):
            asked = Criteria(entity_type=("parcel",), where=wrong)
            with pytest.raises(error):
                await client.create_subscription("shop", "mine", asked)
            body["criteria"][0]["where"] = wrong  # type: ignore[index]
            assert (await http.post(path, json=body)).status_code == status
        assert (await http.get(path)).json()["subscriptions"] == []
        asked = Criteria(entity_type=("parcel",), where="status = 'sent'")
        (kept,) = (await client.create_subscription("shop", "mine", asked)).criteria
        assert replace(kept, where_version=None) == asked


async def test_contract_47_a_policy_that_shrinks_ends_what_it_no_longer_grants(
    granting: Granting,
) -> None:
    text = granting.policy.read_text()
    async with (
        tailrace.connect(granting.target, token=granting.token("customer")) as client,
        granting.http("root") as http,
        client.subscribe("shop") as stream,
    ):
        # 1. A file that cannot be used changes nothing, and is told.
        granting.policy.write_text(text + "[[grant]")
        health = await _health(http, lambda found: bool(found["faults"]))
        assert [each["kind"] for each in health["faults"]] == ["policy"]
        assert health["status"] == "degraded"
        assert len(granting.engine.subscriptions(ANONYMOUS)) == 1
        # 2. One that grants more ends nobody, one that grants less ends the stream by name.
        granting.policy.write_text(text.replace('hidden_columns = "vaultcolumn"\n', ""))
        await _health(http, lambda found: not found["faults"])
        assert len(granting.engine.subscriptions(ANONYMOUS)) == 1
        granting.policy.write_text(text.replace('"{sub}"', '"another"'))
        with pytest.raises(NotPermitted, match="the policy has changed"):
            await asyncio.wait_for(_all_of(stream), PATIENCE_S)


async def _health(
    http: httpx.AsyncClient, wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return what ``/health`` says once it is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: dict[str, Any] = (await http.get("/health")).json()
            if wanted(found):
                return found
            await asyncio.sleep(0.02)


async def _all_of(stream: tailrace.Subscription) -> None:
    async for _ in stream:
        pass
