r"""The form of the log's small objects: JSON with a checksum.

An object consists of lines of text::

    <one JSON object, no line feed in it>\n        a checkpoint has two such lines, a header and a body
    crc32c <8 lower-case hex digits>\n          CRC-32C of the lines before this line

An entry may carry records in front of its line: bytes from offset 0, ended by a line feed. The line describes
them and has their checksums (segment/carried.py). The records are deleted once no object names them; the lines
stay.

An object is valid if and only if its last line has this form and the right number. An object appears whole
(local_files.py), so a visible object that is not valid is ``LogCorrupted``, never a write in progress. The CRC
identifies the object in the chain: the next entry has the CRC of the one before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import google_crc32c
import numpy as np

from tailrace.errors import LogCorrupted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.wal.files.object_store import ObjectStore

_CHECK_LENGTH: Final = len(b"crc32c 01234567\n")
_CHECK: Final = re.compile(rb"crc32c ([0-9a-f]{8})\n")
_OBJECT: Final = re.compile(r"[0-9]{20}", re.ASCII)
_B = TypeVar("_B", bytes, memoryview)


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C of bytes, a view, an Arrow buffer or a contiguous array, continued from ``crc``."""
    if isinstance(data, memoryview):
        data = np.frombuffer(data, np.uint8)  # the library takes no views
    return int(google_crc32c.extend(crc, data))


def object_name(number: int) -> str:
    """Return the file name of a numbered object; 20 digits make names sort like numbers."""
    return f"{number:020d}.json"


def object_number(name: str) -> int | None:
    """Return the number in the file name of a numbered object; None for other files."""
    stem = name.removesuffix(".json")
    return int(stem) if name == f"{stem}.json" and _OBJECT.fullmatch(stem) else None


def object_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the numbered objects among file names, ascending; other files are ignored."""
    return sorted(filter(None, map(object_number, names)))


def seal(*lines: bytes) -> tuple[bytes, int]:
    """Return the bytes of an object and its CRC, given its lines of JSON."""
    text = b"".join(line + b"\n" for line in lines)
    crc = crc32c(text)
    return text + b"crc32c %08x\n" % crc, crc


def unseal(path: str, data: _B) -> tuple[_B, int]:
    """Return the JSON lines of an object, line feeds included, and its CRC; a view yields a view.

    Args:
        path: Path relative to the catalog, for error messages.
        data: The whole file.

    Raises:
        LogCorrupted: The bytes are not a valid object.
    """
    start = max(0, len(data) - _CHECK_LENGTH)
    check = bytes(data[start:])
    if not (len(check) == _CHECK_LENGTH and check.startswith(b"crc32c ") and check.endswith(b"\n")):
        raise LogCorrupted(path, start, "the checksum line is missing or damaged")
    digits = check[7:-1]
    # ``int`` would also accept upper case, signs and underscores.
    if digits.strip(b"0123456789abcdef"):
        raise LogCorrupted(path, start + 7, "the checksum line is damaged")
    text = data[:start]
    crc = crc32c(text)
    if int(digits, 16) != crc:
        raise LogCorrupted(
            path, 0, f"its checksum is {crc:08x}, but the stored one is {digits.decode()}"
        )
    return text, crc


def read_crc(store: ObjectStore, path: str) -> int | None:
    """Return the CRC in an object's last line, without reading the rest; None if it has none."""
    opened = store.open(path)
    if opened is None:
        return None
    check = bytearray(_CHECK_LENGTH)
    opened.read_into(memoryview(check), max(0, opened.size() - _CHECK_LENGTH))
    found = _CHECK.fullmatch(check)
    return None if found is None else int(found[1], 16)


def with_records(records: bytes, text: bytes) -> bytes:
    """Return the bytes of an entry with the records that it carries; ``text`` is its lines."""
    return b"%b\n%b" % (records, text) if records else text


def without_records(data: bytes) -> bytes:
    """Return the lines of an entry, without the records that it carries.

    The JSON line has no line feed in it, so the last line feed before it ends the records.
    """
    return data[data.rfind(b"\n", 0, max(0, len(data) - _CHECK_LENGTH - 1)) + 1 :]
