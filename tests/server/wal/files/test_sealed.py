"""Sealed objects: what is read back is what was sealed, and any other byte is refused."""

from __future__ import annotations

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.wal.files.sealed import (
    object_name,
    object_number,
    object_numbers,
    seal,
    unseal,
    with_records,
    without_records,
)


def test_an_object_is_its_lines_and_its_crc_is_their_identity() -> None:
    data, crc = seal(b'{"a":1}', b'{"b":2}')
    assert unseal("log/x.json", data) == (b'{"a":1}\n{"b":2}\n', crc)
    assert seal(b'{"a":1}', b'{"b":3}')[1] != crc


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data, _ = seal(b'{"version":41}')
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(LogCorrupted):
                unseal("log/x.json", bytes(flipped))
        with pytest.raises(LogCorrupted):
            unseal("log/x.json", data[:place])


@pytest.mark.parametrize("records", [b"", b"\xff\n{\n", b"crc32c 00000000\n"])
def test_the_lines_of_an_entry_are_told_from_the_records_it_carries(records: bytes) -> None:
    text, _ = seal(b'{"kind":"commit"}')
    assert without_records(with_records(records, text)) == text


def test_names_of_objects_sort_as_their_numbers_and_other_names_do_not_count() -> None:
    names = [object_name(number) for number in (9, 10, 123_456)]
    assert sorted(names) == names
    assert object_numbers([*reversed(names), "notes.json", f"{names[0]}.1-ab-0"]) == [
        9,
        10,
        123_456,
    ]
    assert object_number("12.json") is None
