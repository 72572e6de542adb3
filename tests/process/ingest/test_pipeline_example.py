"""The example of a declarative pipeline: its source has the columns that its flow names."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)

from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

if TYPE_CHECKING:
    from pyspark.pipelines.flow import AutoCdcFlow, Flow
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline" / "order_history.py"


class Registry(GraphElementRegistry):
    """Keeps what a pipeline registers."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.changes: list[AutoCdcFlow] = []

    def register_output(self, output: Any) -> None:
        pass

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        self.changes.append(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError(sql_text)


def test_the_flow_of_the_example_fits_the_changes_of_a_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own tables do not support the MERGE of the flow, so it is not run."""
    with LogWriter.open(tmp_path / "log", "shop") as writer:
        writer.append([Mutation("order", "1", after=b'{"id":1,"status":"placed"}')])
    monkeypatch.chdir(tmp_path)
    registry = Registry()
    with graph_element_registration_context(registry):
        runpy.run_path(str(EXAMPLE))
    (flow,), (view,) = registry.changes, registry.flows
    assert (flow.source, flow.stored_as_scd_type) == (view.name, 2)
    changes = view.func()
    assert changes.isStreaming
    assert [*changes.drop(*flow.except_column_list or ()).columns] == [
        *("id", "status", "_commit_version")
    ]
    assert flow.apply_as_deletes is not None
    assert changes.where(flow.apply_as_deletes).select(*flow.keys, flow.sequence_by).isStreaming
