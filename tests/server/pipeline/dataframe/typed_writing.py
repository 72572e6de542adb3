"""Writes of typed rows without Spark: tasks and commit of the data source, called as Spark calls them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.pandas.types import from_arrow_schema

from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa


def write(
    root: Path, parts: Sequence[pa.Table], *, batch_rows: int | None = None, **options: Any
) -> OpenedCatalog:
    """Write a DataFrame whose partitions are ``parts``; return the catalog as it was opened.

    Args:
        root: The log root.
        parts: At least one partition; all have the same columns.
        batch_rows: The most rows of an Arrow batch; None: one batch for each partition.
        options: Options of the write, as strings or numbers.
    """
    given = {"log": str(root), "catalog": "shop", "entityType": "t", "key": "id", **options}
    parsed = Options.of({name: str(value) for name, value in given.items() if value is not None})
    schema = from_arrow_schema(parts[0].schema).jsonValue()
    opened: OpenedCatalog = pickle.loads(
        pickle.dumps(OpenedCatalog.open(parsed, parsed.typed(schema)))
    )
    messages = [
        pickle.loads(
            pickle.dumps(
                opened.write(iter(part.to_batches(batch_rows)), f"{number}-{uuid4().hex}", None)
            )
        )
        for number, part in enumerate(parts)
    ]
    # The commit knows the options alone, as that of a stream.
    replace(opened, typed=parsed.typed(schema)).commit(messages)
    return opened


def state(root: Path, entity_type: str = "t") -> dict[str, bytes]:
    """Return key → image, after the newest published version."""
    view = CommitLog.open(root / "shop").view
    with BatchReader(root / "shop") as reader:
        parts = table_state(view, reader, entity_type, view.published).parts()
        return {
            key: image
            for part in parts
            for key, image in zip(
                part.primary_keys.to_pylist(), part.images.to_pylist(), strict=True
            )
        }
