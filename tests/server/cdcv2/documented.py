"""What the documentation of the format shows: its schema and its changefeed."""

from __future__ import annotations

import json
from typing import Any

LONGS = {"type": "array", "items": "long"}

SCHEMA = json.dumps(
    [
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "update",
                "namespace": "com.materialize.cdc",
                "fields": [
                    {
                        "name": "data",
                        "type": {
                            "type": "record",
                            "name": "data",
                            "fields": [
                                {"name": "id", "type": "long"},
                                {"name": "price", "type": ["null", "int"]},
                            ],
                        },
                    },
                    {"name": "time", "type": "long"},
                    {"name": "diff", "type": "long"},
                ],
            },
        },
        {
            "type": "record",
            "name": "progress",
            "namespace": "com.materialize.cdc",
            "fields": [
                {"name": "lower", "type": LONGS},
                {"name": "upper", "type": LONGS},
                {
                    "name": "counts",
                    "type": {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "counts",
                            "fields": [
                                {"name": "time", "type": "long"},
                                {"name": "count", "type": "long"},
                            ],
                        },
                    },
                },
            ],
        },
    ]
)

CHANGEFEED = """\
{"array":[{"data":{"id":5,"price":{"int":10}},"time":5,"diff":1}]}
{"array":[{"data":{"id":5,"price":{"int":12}},"time":4,"diff":1}]}
{"array":[{"data":{"id":5,"price":{"int":12}},"time":5,"diff":-1}]}
{"array":[{"data":{"id":5,"price":{"int":10}},"time":6,"diff":-1}]}

{"com.materialize.cdc.progress":{"lower":[0],"upper":[3],"counts":[]}}
{"com.materialize.cdc.progress":{"lower":[3],"upper":[10],"counts":[{"time":4,"count":1},{"time":5,"count":2}, \
{"time": 6, "count": 1}]}}
"""
"""As it stands there, without the stray brace in front."""


def schema() -> Any:
    """Return the schema as it is parsed, for a test to change."""
    return json.loads(SCHEMA)


def data_of(schema: Any) -> Any:
    """Return the part of a schema that a stream may choose."""
    return schema[0]["items"]["fields"][0]["type"]
