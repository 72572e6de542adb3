"""Avro JSON lines, and the documentation's example from file to reader and back."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from tailrace.cdcv2 import Finished, Progress, Reader, Update, Writer
from tailrace_server.cdcv2 import (
    AvroForm,
    MessageUnreadable,
    read_container,
    read_lines,
    write_container,
    write_lines,
)
from tests.server.cdcv2.documented import CHANGEFEED, SCHEMA
from tests.support.mangle import history_of, mangle

if TYPE_CHECKING:
    from pathlib import Path

FORM = AvroForm.of(SCHEMA)


def test_contract_40_41_the_documentations_example_from_file_to_reader_and_back(
    tmp_path: Path,
) -> None:
    feed = tmp_path / "changefeed.json"
    feed.write_text(CHANGEFEED)
    with feed.open("rb") as lines:
        statements = list(read_lines(FORM, lines))
    reader = Reader()
    pieces = [piece for each in statements for piece in reader.receive(each)]
    assert pieces == [
        Finished([], (3,)),
        Finished(
            [
                Update((5, 12), 4, 1),
                Update((5, 10), 5, 1),
                Update((5, 12), 5, -1),
                Update((5, 10), 6, -1),
            ],
            (10,),
        ),
    ]
    writer = Writer(batch_size=1)
    again = []
    for piece in pieces:
        writer.write(piece.updates)
        again += writer.advance(piece.frontier)
    # The same lines, of which each stands alone, but for their order and blanks.
    written = b"".join(write_lines(FORM, again)).splitlines()
    shown = [
        json.dumps(json.loads(line), separators=(",", ":"))
        for line in CHANGEFEED.split("\n")
        if line
    ]
    assert sorted(map(bytes.decode, written)) == sorted(shown)
    # And as a file of blocks, mangled.
    with (tmp_path / "changefeed.avro").open("wb") as out:
        write_container(FORM, out, mangle(again, random.Random(1)))
    with (tmp_path / "changefeed.avro").open("rb") as file:
        mangled = Reader()
        back = [piece for each in read_container(FORM, file) for piece in mangled.receive(each)]
    assert history_of(back) == history_of(pieces)
    assert mangled.frontier == (10,)


def test_the_stray_brace_of_the_page_is_named_by_its_line() -> None:
    with pytest.raises(MessageUnreadable, match="line 1: not JSON"):
        list(read_lines(FORM, ("{" + CHANGEFEED).splitlines()))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7", "neither"),
        ("{}", "neither"),
        ('{"array":[],"more":1}', "neither"),
        ('{"progress":{"lower":[0],"upper":[3],"counts":[]}}', "neither"),
        ('{"array":{}}', "{} is no list"),
        (
            '{"array":[{"data":{"id":5,"price":null},"time":5}]}',
            r"\[0\]\.diff: the field is missing",
        ),
        (
            '{"array":[{"data":{"id":5,"price":10},"time":5,"diff":1}]}',
            r"\[0\]\.data\.price: 10 is neither",
        ),
        (
            '{"array":[{"data":{"id":5,"price":{"long":1}},"time":5,"diff":1}]}',
            "'long' is no branch",
        ),
        ('{"array":[{"data":{"id":"5","price":null},"time":5,"diff":1}]}', "'5' is no long"),
        (
            '{"array":[{"data":{"id":5,"price":null,"x":1},"time":5,"diff":1}]}',
            r"data\.x: the schema has no",
        ),
        ('{"array":[{"data":{"id":5.0,"price":null},"time":5,"diff":1}]}', "5.0 is no long"),
        (
            '{"array":[{"data":{"id":1,"price":null},"time":9223372036854775808,"diff":1}]}',
            "beyond a long",
        ),
        (
            '{"array":[{"data":{"id":1,"price":{"int":2147483648}},"time":1,"diff":1}]}',
            "beyond a int",
        ),
        ('{"array":[],"array":[]}', "a name stands twice"),
        ('{"array":[NaN]}', "NaN is not JSON"),
        ("[" * 100_000, "not JSON"),
        ("\xff", "not JSON"),
    ],
)
def test_a_line_that_is_no_message_is_refused_by_its_number_and_field(
    line: str, reason: str
) -> None:
    with pytest.raises(MessageUnreadable, match=reason) as caught:
        list(read_lines(FORM, ["", line]))
    assert caught.value.where == "line 2"


def test_lines_may_be_bytes_and_end_in_anything() -> None:
    lines = [
        b'{"array":[]}\r\n',
        b"  \n",
        b'{"com.materialize.cdc.progress":{"lower":[],"upper":[],"counts":[]}}',
    ]
    assert list(read_lines(FORM, lines)) == [[], Progress((), (), ())]
