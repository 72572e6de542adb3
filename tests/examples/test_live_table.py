"""The live table for browsers, run by Node: every version that it shows is that of history, through cuts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.client.table.shop import Shop, typed
from tests.process.commands import ServerProcess
from tests.support.programs import PATIENCE_S, Program, found
from tests.support.proxy import FaultyProxy

if TYPE_CHECKING:
    from tests.support.inprocess import ModelWriter

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
import { LiveTable } from "./live-table.js";
const table = new LiveTable(process.argv[1], "product");
table.onversion = () => console.log(JSON.stringify([table.version, Object.fromEntries(table)]));
table.follow().catch((error) => console.log(JSON.stringify([error.code, error.message])));
"""


@pytest.mark.slow
async def test_a_live_table_in_javascript_is_the_fold_of_history(
    log_root: Path, writer: ModelWriter
) -> None:
    shop = Shop(writer)
    shop.trade(5)
    server = ServerProcess(log_root)
    async with (
        asyncio.timeout(PATIENCE_S),
        server.up(),
        FaultyProxy(int(server.http.rpartition(":")[2])) as proxy,
    ):
        url = f"http://127.0.0.1:{proxy.port}/v1/catalogs/shop"
        command = (found("node"), "--input-type=module", "-e", PROGRAM, url)
        async with Program(*command, folder=EXAMPLES / "browser") as program:
            seen = 0
            for cut in (1_000, 400, None):
                if cut is not None:
                    proxy.cut_after(cut)
                shop.trade(15)
                version = 0
                while version < shop.version:
                    seen += 1
                    line = (await program.printed(seen))[-1]
                    version, rows = json.loads(line)
                    expected = shop.states[version]
                    assert {key: typed(json.loads(row)) for key, row in rows.items()} == expected
        assert proxy.cuts >= 1
