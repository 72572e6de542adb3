"""Object container files, ours and the Avro library's, whole and damaged."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from tailrace.cdcv2 import Progress, Update
from tailrace_server.cdcv2 import (
    AvroForm,
    ContainerReader,
    DataMisfit,
    MessageUnreadable,
    SchemaDiffers,
    read_container,
    write_container,
)
from tests.server.cdcv2.documented import SCHEMA, data_of, schema

if TYPE_CHECKING:
    from tailrace.cdcv2 import Statement

FORM = AvroForm.of(SCHEMA)
STATEMENTS: list[Statement[int]] = [
    [Update((i, i % 3 or None), time, 1) for i in range(50)] for time in range(100)
]
STATEMENTS.append(Progress((0,), (100,), tuple((time, 50) for time in range(100))))


def container(codec: str = "deflate") -> bytes:
    file = BytesIO()
    assert write_container(FORM, file, STATEMENTS, codec=codec) == len(STATEMENTS)
    return file.getvalue()


def as_the_library_has_them() -> list[Any]:
    return [
        {"lower": list(each.lower), "upper": list(each.upper),
         "counts": [{"time": time, "count": count} for time, count in each.counts]}
        if isinstance(each, Progress)
        else [{"data": FORM.record_of(data), "time": time, "diff": diff} for data, time, diff in each]  # type: ignore[arg-type]
        for each in STATEMENTS
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_what_is_written_is_read_by_us_and_by_the_avro_library(codec: str) -> None:
    raw = container(codec)
    assert list(read_container(FORM, BytesIO(raw))) == STATEMENTS
    library = fastavro.reader(BytesIO(raw))
    assert library.metadata["avro.schema"] == SCHEMA
    assert list(library) == as_the_library_has_them()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_what_the_avro_library_writes_is_read(codec: str) -> None:
    file = BytesIO()
    fastavro.writer(file, schema(), as_the_library_has_them(), codec=codec, sync_interval=2000)
    file.seek(0)
    reader = ContainerReader(file)
    assert reader.codec == codec
    assert list(reader) == STATEMENTS


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_of_other_libraries_are_read(codec: str) -> None:
    """The blocks are packed by Arrow, as those libraries would."""
    raw = bytearray()
    for statement in STATEMENTS:
        FORM.write(statement, raw)
    packed = pa.compress(
        bytes(raw), codec={"snappy": "snappy", "zstandard": "zstd"}[codec], asbytes=True
    )
    if codec == "snappy":
        packed += zlib.crc32(raw).to_bytes(4, "big")
    file = BytesIO()
    _write(file, codec, len(STATEMENTS), packed)
    file.seek(0)
    assert list(ContainerReader(file)) == STATEMENTS
    damaged = BytesIO()
    _write(damaged, codec, len(STATEMENTS), packed[:-9] + b"!" + packed[-8:])
    damaged.seek(0)
    with pytest.raises(MessageUnreadable, match=r"block at byte \d+: block does not unpack"):
        list(ContainerReader(damaged))


def _write(file: BytesIO, codec: str, count: int, packed: bytes) -> None:
    plain = BytesIO()
    write_container(FORM, plain, [], codec="null")
    head = plain.getvalue()
    long = AvroForm.of_data(
        {"type": "record", "name": "data", "fields": [{"name": "x", "type": "long"}]}
    )
    size = BytesIO()
    for number in (count, len(packed)):
        size.write(long.encode([Update((number,), 0, 1)])[2:-3])
    named = bytes((2 * len(codec),)) + codec.encode()
    file.write(head.replace(b"\x08null\x00", named + b"\x00"))
    file.write(size.getvalue() + packed + head[-16:])


def test_an_empty_file_of_messages_is_whole() -> None:
    file = BytesIO()
    assert write_container(FORM, file, []) == 0
    file.seek(0)
    assert list(read_container(FORM, file)) == []


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_truncated_file_gives_whole_blocks_and_then_an_error(codec: str) -> None:
    """At every byte but those where a block ends, behind which nothing need stand."""
    raw = container(codec)
    sync, ends = raw[-16:], set[int]()
    at = raw.find(sync)
    while at >= 0:
        ends.add(at + 16)
        at = raw.find(sync, at + 1)
    step = max(len(raw) // 150, 1)
    for size in {*range(0, len(raw), step), *(end - 1 for end in ends), *ends}:
        got: list[Statement[int]] = []
        if size in ends:
            got += ContainerReader(BytesIO(raw[:size]))
        else:
            with pytest.raises(MessageUnreadable, match=r"ends inside"):
                got += ContainerReader(BytesIO(raw[:size]))
        assert got == STATEMENTS[: len(got)]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "byte 0: the file ends inside its magic"),
        (b"PAR1PAR1", "byte 0: not an Avro container file"),
        (b"Obj\x01\x00" + bytes(16), "header: no avro.schema"),
        (b"Obj\x01\x02\x14avro.codec\x06lz9\x00" + bytes(16), "header: codec 'lz9' is none of"),
        (b"Obj\x01\x02\x01", "-1 bytes in the header"),
        (b"Obj\x01" + b"\xff" * 11, "no number of 64 bits in the header"),
        (b"Obj\x01\x02\xfe\xff\xff\xff\xff\x7f", "bytes in the header"),
    ],
)
def test_a_file_that_is_no_container_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(MessageUnreadable, match=reason):
        ContainerReader(BytesIO(raw))


def test_damage_is_named_by_the_block() -> None:
    raw = container("null")
    header = raw.find(raw[-16:]) + 16
    wrong_sync = raw[:-1] + bytes((raw[-1] ^ 1,))
    with pytest.raises(MessageUnreadable, match=r"byte \d+: the block does not end in the sync"):
        list(ContainerReader(BytesIO(wrong_sync)))
    fewer = raw[:header] + b"\x02" + raw[header + 2 :]
    with pytest.raises(MessageUnreadable, match=rf"block at byte {header}: \d+ bytes behind"):
        list(ContainerReader(BytesIO(fewer)))
    with pytest.raises(MessageUnreadable, match=rf"byte {header}: block of -1 messages"):
        list(ContainerReader(BytesIO(raw[:header] + b"\x01" + raw[header + 2 :])))


def test_a_second_schema_is_refused_with_the_place_where_it_differs() -> None:
    """As where another table's file has come into the folder."""
    other = schema()
    data_of(other)["fields"][1]["type"] = ["null", "long"]
    with pytest.raises(SchemaDiffers) as caught:
        read_container(AvroForm.of(other), BytesIO(container()))
    assert caught.value.place == "[0].items.fields[0].type.fields[1].type[1]"
    assert (caught.value.expected, caught.value.found) == ("long", "int")


def test_a_container_of_anything_else_is_refused() -> None:
    file = BytesIO()
    fastavro.writer(file, data_of(schema()), [{"id": 1, "price": None}])
    file.seek(0)
    with pytest.raises(SchemaDiffers, match="at the top: expected 2 branches"):
        ContainerReader(file)


def test_a_misfit_leaves_the_blocks_before_it() -> None:
    file = BytesIO()
    with pytest.raises(DataMisfit):
        write_container(FORM, file, [*STATEMENTS * 3, [Update(("x", 1), 1, 1)]], codec="null")
    file.seek(0)
    got = list(ContainerReader(file))
    assert got
    assert got == (STATEMENTS * 3)[: len(got)]
    with pytest.raises(ValueError, match="codec 'snappy' is none of deflate, null"):
        write_container(FORM, file, [], codec="snappy")
