"""A log that is restored from a copy under a running server: the server answers as one that was started anew.

A restored log repeats what a process could take for the identity of content: the uuid, the paths of segments
and entries, the offsets of batches, revisions, and the ids of schemas and definitions.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from tailrace import After, Content, Criteria, FromState, HistoryReplaced
from tailrace.errors import LogCorrupted, LogMissing, SubscriptionBroken, TailraceError
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.upkeep.copying import copy_log
from tests.conformance.drivers import DRIVERS, OurClient
from tests.conformance.http_drivers import RestWebSocket
from tests.conformance.reading import collect, error_ending
from tests.support.polling import until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.conformance.ways import Driver

WAYS: Final = ("client", "rest-ws", "sse", "graphql-ws")
ROWS: Final = 600
"""Rows of each version before the log is restored."""
COPIED, LOST, NEW = 5, 10, 12
"""The last version of the copy, of the history that is replaced, and of the one that takes its place."""

ENDINGS: Final = (LogMissing, LogCorrupted, SubscriptionBroken)
"""How a reader ends; the last one is what our client without retries makes of the first."""
TAGGED: Final = tuple(
    f"/v1/catalogs/shop/{path}"
    for path in (
        "state/product?atVersion=7&limit=3",
        "state/product/shared",
        "changes?untilVersion=8",
    )
)
"""What has a tag, by which a client asks again."""


def write(writer: LogWriter, versions: Sequence[int], rows: int, column: str) -> None:
    """Write versions of so many rows each; the only column and all keys but one name the history."""
    for version in versions:
        after = b'{"%s":%d}' % (column.encode(), version)
        keys = ["shared", *(f"{column}{row}" for row in range(1, rows))]
        writer.append([Mutation("product", key, after=after) for key in keys])
        writer.commit(publish=True)


@asynccontextmanager
async def served(root: Path) -> AsyncIterator[dict[str, Driver]]:
    """Serve a root over all transports at once."""
    settings = EngineSettings(reads_bytes=64 << 20)  # nothing that was read is evicted
    async with Engine(root, settings) as engine, AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(DRIVERS[name].serve(engine)) for name in WAYS}


async def answers(drivers: dict[str, Driver], published: int, rows: int) -> dict[str, Any]:
    """Return what every interface answers about the versions from 5 on, without what is new each time."""
    found: dict[str, Any] = {}
    everything: Any = {"content": Content.AFTER}
    whole = (await drivers["client"].read(since_version=COPIED + 1, **everything)).captures
    for name, driver in drivers.items():
        page = await driver.read(since_version=COPIED + 1, **everything)
        found[f"{name}: history"] = page.captures, page.closed_until
        subscription = await driver.subscribe(start=After(whole[0].cursor), **everything)
        found[f"{name}: live"] = await collect(subscription, len(whole) - 1)
        await subscription.cancel()
    for name in ("client", "rest-ws"):
        for version in (COPIED, COPIED + 2, published):
            table = await drivers[name].state(at_version=version, limit=700)
            found[f"{name}: state at {version}"] = table.captures, table.version, table.next_page
        state = await drivers[name].subscribe(
            [Criteria(entity_type=("product",))], start=FromState(), **everything
        )
        found[f"{name}: state and changes"] = await collect(state, ROWS + rows - 1)
        await state.cancel()
    client, rest = drivers["client"], drivers["rest-ws"]
    assert isinstance(client, OurClient)
    assert isinstance(rest, RestWebSocket)
    statements = ["SELECT count(*) AS n, count(DISTINCT _primary_key) AS keys FROM product"]
    statements += [f"SELECT * FROM CHANGES('product', 6, {published}) ORDER BY ALL LIMIT 700"]
    for statement in statements:
        answer = await rest.http.post("/v1/catalogs/shop/sql", json={"statement": statement})
        found[f"rest: {statement}"] = answer.json()
        async with client.client.sql("shop", statement) as selected:
            found[f"grpc: {statement}"] = [row async for row in selected]
    names = '{ __type(name: "Product") { fields { name } } changes(last: 1) { anchor } }'
    answer = await rest.http.post("/v1/catalogs/shop/graphql", json={"query": names})
    found["graphql: schema"] = answer.json()
    for path in ("changes?untilVersion=9", "state/product?atVersion=7&limit=3", "schema"):
        answer = await rest.http.get(f"/v1/catalogs/shop/{path}")
        found[f"rest: {path}"] = answer.json(), answer.headers.get("etag")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "swapped"), [(500, False), (600, True), (700, False)])
async def test_contract_25_a_restored_log_is_served_as_by_a_server_that_was_started_anew(
    log_root: Path, tmp_path: Path, rows: int, swapped: bool
) -> None:
    """Also where a version has as many rows as before, and where the new log takes the name at once."""
    log, backup, restored = log_root / "shop", tmp_path / "backup", tmp_path / "restored"
    # 1. Five versions, a copy, and five more.
    with LogWriter.open(log_root, "shop") as writer:
        write(writer, range(1, COPIED + 1), ROWS, "a")
    copy_log(log, backup)
    with LogWriter.open(log_root, "shop", take_over=True) as writer:
        write(writer, range(COPIED + 1, LOST + 1), ROWS, "b")
    async with served(log_root) as warm:
        # 2. The server has read all of it, and readers follow at its end.
        await answers(warm, LOST, ROWS)
        live = {name: await each.subscribe() for name, each in warm.items()}
        rest = warm["rest-ws"]
        assert isinstance(rest, RestWebSocket)
        tags = {path: (await rest.http.get(path)).headers["etag"] for path in TAGGED}
        page = (await rest.http.get(TAGGED[0])).json()["nextPage"]
        # 3. The log is restored as documented, and other versions are written.
        log.rename(tmp_path / "gone")
        if not swapped:
            copy_log(backup / "shop", log_root)
        copy_log(backup / "shop", restored)
        with LogWriter.open(restored if swapped else log_root, "shop", take_over=True) as writer:
            write(writer, range(COPIED + 1, NEW + 1), rows, "c")
        if swapped:
            (restored / "shop").rename(log)
        # 4. The readers end, and cannot go on in the history that has taken the place of theirs.
        for name, subscription in live.items():
            _, error = await error_ending(subscription)
            assert isinstance(error, ENDINGS), (name, error)
        await until_answered(lambda: shows(warm, NEW))
        for name, driver in warm.items():
            with pytest.raises(HistoryReplaced):
                await driver.subscribe(start=After(live[name].acknowledgement.resume_cursor))
        for path, tag in tags.items():
            assert (await rest.http.get(path, headers={"if-none-match": tag})).status_code == 200
        with pytest.raises(HistoryReplaced):
            await rest.state(page=page)
        # 5. Everything is as a server says it that has never seen the other history.
        found = await answers(warm, NEW, rows)
    async with served(log_root) as fresh:
        expected = await answers(fresh, NEW, rows)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


async def shows(drivers: dict[str, Driver], version: int) -> bool:
    """Return whether the server has opened the log anew and shows a version."""
    try:
        engine = drivers["client"].engine
        return (await engine.view(ANONYMOUS, "shop")).published >= version
    except TailraceError:
        return False
