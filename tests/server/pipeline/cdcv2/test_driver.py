"""When a batch is small, and what survives a restart. Whole batches: `test_ingest`, `test_product_times`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.cdcv2 import Progress, Update
from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import write_line
from tailrace_server.pipeline.cdcv2.batch import SourceFile
from tailrace_server.pipeline.cdcv2.driver import FRONTIER, Cdcv2Driver
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import new_files, open_writer
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tests.server.pipeline.cdcv2.streams import SCHEMA, put

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cdcv2 import Statement


@pytest.fixture
def settings(tmp_path: Path, log_root: Path) -> Cdcv2Settings:
    """Return the settings of a stream with a key, and make its input folder."""
    folder = tmp_path / "input"
    folder.mkdir()
    return Cdcv2Settings(
        input=folder,
        log=log_root,
        catalog="shop",
        folding=Folding(SCHEMA, "product", ("id",)),
        small_batch_rows=10,
    )


def test_a_batch_is_small_by_the_size_of_its_files_and_of_the_state(
    settings: Cdcv2Settings,
) -> None:
    messages: list[Statement[int]] = [[Update((n, "a", None), 1, 1) for n in range(101)]]
    put(settings.input / "a.json", b"".join(write_line(SCHEMA.form, each) for each in messages))
    with open_writer(settings) as writer:
        driver = Cdcv2Driver(writer, settings)
        sizes = [SourceFile("x", "x", size, 0) for size in (160, 161)]
        assert driver.is_small(sizes[:1] * 2)
        assert not driver.is_small(sizes)
        driver.batch(new_files(settings.input, driver))
        assert not driver.is_small(sizes[:1])


def test_a_second_driver_goes_on_where_the_first_left_off(settings: Cdcv2Settings) -> None:
    row = (1, "a", None)
    parts: list[Statement[int]] = [[Update(row, 1, 1)], Progress((0,), (2,), ((1, 1),))]
    for number, message in enumerate(parts):
        put(settings.input / f"{number}.json", write_line(SCHEMA.form, message))
        with open_writer(settings) as writer:
            driver = Cdcv2Driver(writer, settings)
            assert (driver.last_batch, driver.control.frontier) == (number - 1, 0)
            files = new_files(settings.input, driver)
            assert [file.name for file in files] == [f"{number}.json"]
            driver.batch(files)
            assert driver.is_consumed(f"{number}.json")
    assert driver.control.frontier == 2
    assert driver.counters.versions == 1
    assert writer.state.source_positions[FRONTIER] == "[2]"


def test_a_stream_of_another_start_is_refused(settings: Cdcv2Settings) -> None:
    put(settings.input / "a.json", write_line(SCHEMA.form, [Update((1, "a", None), 1, 1)]))
    with open_writer(settings) as writer:
        driver = Cdcv2Driver(writer, settings)
        driver.batch(new_files(settings.input, driver))
    with open_writer(settings) as writer, pytest.raises(InvalidRequest, match="--start-time 5"):
        Cdcv2Driver(writer, replace(settings, start=5))
