"""The example of the format page, from its file to a subscriber and back out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import tailrace
from tailrace import Area, Content, Criteria, Operation
from tailrace.cdcv2 import Progress, Reader, Update
from tailrace_server.export.cdcv2 import Cdcv2Export, ExportSettings
from tailrace_server.pipeline.cdcv2.files import StreamSchema
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tests.server.cdcv2.documented import CHANGEFEED, SCHEMA
from tests.server.export.logs import statements
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

TIMES = {1: 4, 2: 5, 3: 6}
"""Version of the catalog → time of the example."""
PRICES = Criteria(area=Area.DATA, entity_type=("price",))


async def test_the_documentations_example_from_file_to_subscriber_and_back(
    serve: Any, log_root: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "changefeed.json").write_text(CHANGEFEED)
    settings = Cdcv2Settings(
        input=folder,
        log=log_root,
        catalog="prices",
        folding=Folding(StreamSchema(SCHEMA), "price", ("id",)),
    )
    await asyncio.to_thread(
        ingest_cdcv2, settings, ProgressReporter(quiet=True), stopping=Stopping()
    )
    served = await serve()
    captures: list[tuple[Any, ...]] = []
    found: list[Any] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        tailrace.connect(served.target) as client,
        client.subscribe("prices", PRICES, since=1, content=Content.BODY) as subscription,
        client.subscribe_cdcv2("prices", PRICES, since=1) as updates,
    ):
        async for capture in subscription:
            captures.append((capture.version, capture.operation, capture.before, capture.after))
            if len(captures) == 3:
                break
        while updates.frontier < 4:
            found += (await anext(updates)).updates
    ten, twelve = b'{"id":5,"price":10}', b'{"id":5,"price":12}'
    assert captures == [
        (1, Operation.UPSERT, None, twelve),
        (2, Operation.UPSERT, twelve, ten),
        (3, Operation.REMOVE, ten, None),
    ]
    assert sorted((TIMES[each.time], each.data.image, each.diff) for each in found) == [
        (4, twelve, 1),
        (5, ten, 1),
        (5, twelve, -1),
        (6, ten, -1),
    ]
    exporting = ExportSettings(log=log_root, catalog="prices", entity_type="price", output=out)
    with Cdcv2Export.begin(exporting) as export:
        export.advance()
    reader: Reader[int] = Reader()
    written = statements(out)
    back = [
        Update(each.data, TIMES[each.time], each.diff)
        for message in written
        for piece in reader.receive(message)
        for each in piece.updates
    ]
    assert sorted(back) == [((5, 10), 5, 1), ((5, 10), 6, -1), ((5, 12), 4, 1), ((5, 12), 5, -1)]
    assert any(isinstance(message, Progress) for message in written)
    assert reader.frontier == (4,)
