"""The folder that Spark is given. What it reads there: process/ingest/test_ingest.py."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.pipeline.input.source import _GLOB


def escaped(name: str) -> str:
    return _GLOB.sub(r"\\\g<0>", name)


def test_a_plain_path_stays_as_it_is() -> None:
    assert escaped("/data/größe 1/a-b,c+d^e.json") == "/data/größe 1/a-b,c+d^e.json"


@given(st.text(alphabet="[]{}*?\\a/", max_size=12))
@settings(max_examples=30)
def test_each_character_of_a_pattern_stands_for_itself(name: str) -> None:
    written = escaped(name)
    assert re.sub(r"\\(.)", r"\1", written) == name
    assert not set(re.sub(r"\\.", "", written)) & set("[]{}*?\\")
