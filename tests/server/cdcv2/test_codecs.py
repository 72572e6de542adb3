"""Codecs of blocks; whole files of each codec are tested in `test_container.py`."""

from __future__ import annotations

import bz2
import lzma
import zlib

import pyarrow as pa
import pytest

from tailrace_server.cdcv2 import container

RAW = bytes(range(250)) * 40


def packed(codec: str, raw: bytes = RAW) -> bytes:
    """Return a block as another library packs it."""
    match codec:
        case "null":
            return raw
        case "deflate":
            return zlib.compress(raw)[2:-4]
        case "bzip2":
            return bz2.compress(raw)
        case "xz":
            return lzma.compress(raw)
        case "snappy":
            block: bytes = pa.compress(raw, codec="snappy", asbytes=True)
            return block + zlib.crc32(raw).to_bytes(4, "big")
        case _:
            block = pa.compress(raw, codec="zstd", asbytes=True)
            return block


PACKING = [codec for codec in container.READERS if codec != "null"]


@pytest.mark.parametrize("codec", container.READERS)
@pytest.mark.parametrize("raw", [b"", b"x", RAW])
def test_what_other_libraries_pack_is_unpacked(codec: str, raw: bytes) -> None:
    assert container.unpack(codec, packed(codec, raw)) == raw


@pytest.mark.parametrize("codec", container.WRITERS)
@pytest.mark.parametrize("raw", [b"", RAW])
def test_what_is_packed_is_unpacked(codec: str, raw: bytes) -> None:
    assert container.unpack(codec, container.WRITERS[codec](raw)) == raw


@pytest.mark.parametrize("codec", PACKING)
def test_what_is_no_block_is_damage(codec: str) -> None:
    with pytest.raises(ValueError, match=f"block does not unpack as {codec}"):
        container.unpack(codec, b"\xff" * 20)


@pytest.mark.parametrize("codec", PACKING)
def test_a_block_that_is_cut_off_is_damage(codec: str) -> None:
    with pytest.raises(ValueError, match=f"block does not unpack as {codec}"):
        container.unpack(codec, packed(codec)[:-5])


def test_the_checksum_of_snappy_is_that_of_the_bytes() -> None:
    block = packed("snappy")
    with pytest.raises(ValueError, match="checksum"):
        container.unpack("snappy", block[:-1] + bytes((block[-1] ^ 1,)))


@pytest.mark.parametrize("codec", PACKING)
def test_a_block_that_unpacks_to_more_than_there_may_be_is_damage(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "UNPACKED_BYTES_MAX", len(RAW))
    assert container.unpack(codec, packed(codec)) == RAW
    monkeypatch.setattr(container, "UNPACKED_BYTES_MAX", len(RAW) - 1)
    with pytest.raises(ValueError, match=f"holds more than {len(RAW) - 1} bytes"):
        container.unpack(codec, packed(codec))
