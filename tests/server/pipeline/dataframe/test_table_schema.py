"""A DataFrame's schema as the columns of an entity type; test_sink.py commits rows of one."""

from __future__ import annotations

import pytest

from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.pipeline.dataframe.table_schema import columns_of
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.pipeline.input.column_listing import announced


@pytest.mark.parametrize(
    ("kind", "sql_type", "encoding"),
    [
        ("long", "BIGINT", "json"),
        ("binary", "VARBINARY", "base64"),
        ("decimal(10,2)", "DECIMAL(10,2)", "json"),
        ("varchar(20)", "VARCHAR(20)", "json"),
        ("timestamp_ntz", "TIMESTAMP", "json"),
        ("interval day", "JSON", "json"),
        ({"type": "array", "elementType": "long"}, "JSON", "json"),
    ],
)
def test_types_are_those_of_sql(kind: object, sql_type: str, encoding: str) -> None:
    field = {"name": "c", "type": kind, "nullable": False, "metadata": {}}
    names, text = columns_of({"type": "struct", "fields": [field]})
    assert names == ["c"]
    found = announced(text)
    assert (found.columns, found.origin) == ((("c", sql_type, encoding, False),), Origin.TABLE)


@pytest.mark.parametrize("schema", [None, {}, {"fields": [{"type": "long"}]}])
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(InvalidRequest, match="not the JSON of a DataFrame's schema"):
        columns_of(schema)


@pytest.mark.parametrize("place", ["s3a://bucket/of/queries", "hdfs://name:8020/c", "dbfs:/c"])
def test_a_checkpoint_that_only_spark_can_read_is_accepted(place: str) -> None:
    options = Options.of({"path": "log/shop", "checkpointLocation": place})
    assert (options.checkpoint, options.stored_query_id()) == (place, "")
