"""Options of the data source. Writes on Spark: tests/process/ingest/test_datasource.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.datasource import TailraceDataSource
from tailrace_server.pipeline.dataframe.write_options import Options


def test_a_catalog_is_named_by_log_and_catalog_or_by_path() -> None:
    given = {"LOG": "/logs", "Catalog": "shop", "checkpointLocation": "/c", "batch": "7"}
    options = Options.of(given)
    assert (options.root, options.catalog, options.batch) == (Path("/logs"), "shop", 7)
    assert Options.of({"path": "/logs/shop", "publish": "FALSE"}).publish is False
    for names in ({}, {"log": "/logs"}, {"path": "/logs/shop", "log": "/logs", "catalog": "shop"}):
        with pytest.raises(InvalidRequest, match="give the catalog"):
            Options.of(names)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("colums", "{}", "no option 'colums'"),
        ("columns", "[]", "must be an object"),
        ("columns", "{", "option columns"),
        ("batch", "x", "option columns or batch"),
        ("batch", "-1", "from 0 to"),
        ("publish", "yes", "true or false"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, value: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Options.of({"path": "/logs/shop", option: value})


def test_columns_are_names_or_a_schema_with_types() -> None:
    field = '{"name":"id","type":"long","nullable":false,"metadata":{}}'
    given = '{"a":["x","y"],"b":{"type":"struct","fields":[' + field + "]}}"
    options = Options.of({"path": "/logs/shop", "columns": given})
    assert {name: list(columns) for name, columns in options.columns.items()} == {
        "a": ["x", "y"],
        "b": ["id"],
    }
    assert list(options.listings) == ["b"]


def test_only_appends_are_taken() -> None:
    source = TailraceDataSource({"path": "/logs/shop"})
    for opened in (source.writer, source.streamWriter):
        with pytest.raises(InvalidRequest, match="supports only appends"):
            opened(None, True)  # type: ignore[arg-type]  # refused before the schema is read
