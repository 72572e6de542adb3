"""The linker: makes self-contained code, which can be mapped at any address, from an object file of LLVM.

The object is an ELF file for x86-64 or AArch64. The linker takes its sections with code and constants: those
that are in memory at run time and are never written to. It puts them one after the other. A *relocation* is a
place in them that depends on the distance to a symbol. All distances are known now, so each one is filled in.

Source: System V ABI, chapter 4 (object files); its supplements for x86-64 and AArch64 (relocations).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_X86_64, _AARCH64 = 62, 183
_SYMBOLS, _RELOCATIONS = 2, 4
_WRITABLE, _IN_MEMORY = 1, 2
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QIIq")
_UNWINDING: Final = ".eh_frame"
"""Section with unwinding tables for exceptions of C++, which our code does not use."""


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    data: bytes
    info: int
    """In a section of relocations, the number of the section that they change."""
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int
    """Number of the section that has the symbol; 0 if no section of this file has it."""
    place: int
    """Offset of the symbol in that section."""


def link(object_file: bytes, functions: Iterable[str]) -> tuple[dict[str, int], bytes]:
    """Link an object file; return the place of each function in the code, and the code.

    Raises:
        ValueError: The code needs an external symbol, writable memory, or an unknown kind of relocation.
    """
    machine = _HEADER.unpack_from(object_file)[2]
    sections = _sections(object_file)
    symbols = _symbols(sections)
    if missing := [each.name for each in symbols if each.name and not each.section]:
        raise ValueError(f"the code calls {', '.join(missing)}, which is not in it")
    # 1. Put the sections one after the other, each at its alignment.
    code = bytearray()
    begins: dict[int, int] = {}
    for number, section in enumerate(sections):
        if not section.flags & _IN_MEMORY or not section.data or section.name == _UNWINDING:
            continue
        if section.flags & _WRITABLE:
            raise ValueError(f"the code has memory to write to, {section.name}")
        code += bytes(-len(code) % max(section.alignment, 1))
        begins[number] = len(code)
        code += section.data
    # 2. Fill in the distance at each relocation.
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in begins:
            continue
        for offset, kind, symbol, addend in _RELOCATION.iter_unpack(section.data):
            target = symbols[symbol]
            at = begins[section.info] + offset
            _relocate(code, machine, kind, at, begins[target.section] + target.place + addend)
    found = {
        each.name: begins[each.section] + each.place for each in symbols if each.section in begins
    }
    return {name: found[name] for name in functions}, bytes(code)


def _relocate(code: bytearray, machine: int, kind: int, at: int, to: int) -> None:
    """Fill in the distance from one place in the code to another.

    Args:
        code: The code.
        machine: The machine, as in the header of the object file.
        kind: The kind of the relocation, which says how an instruction contains the distance.
        at: The place to fill in.
        to: The place to which it refers.
    """
    distance = to - at
    if machine == _X86_64 and kind in (2, 4):  # R_X86_64_PC32, PLT32
        struct.pack_into("<i", code, at, distance)
        return
    if machine == _AARCH64:
        [word] = struct.unpack_from("<I", code, at)
        # The code is mapped at the beginning of a page of 4 KiB, so distances in pages are known as well.
        pages = (to >> 12) - (at >> 12)
        if kind == 261:  # R_AARCH64_PREL32
            word = distance & 0xFFFFFFFF
        elif kind in (282, 283):  # JUMP26, CALL26
            word |= distance >> 2 & 0x3FFFFFF
        elif kind == 275:  # ADR_PREL_PG_HI21
            word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        elif kind in _LOW_BITS:
            word |= (to & 0xFFF) >> _LOW_BITS[kind] << 10
        else:
            raise ValueError(f"relocation {kind} is not known")
        struct.pack_into("<I", code, at, word)
        return
    raise ValueError(f"relocation {kind} of machine {machine} is not known")


_LOW_BITS: Final = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
"""Maps R_AARCH64_ADD_ABS_LO12_NC and LDST8 to LDST128 to the binary logarithm of the unit of the distance."""


def _sections(file: bytes) -> list[_Section]:
    """Return the sections of an object file, in their order."""
    header = _HEADER.unpack_from(file)
    table, count, names_section = header[6], header[12], header[13]
    raw = [_SECTION.unpack_from(file, table + _SECTION.size * number) for number in range(count)]
    names = file[raw[names_section][4] :]
    return [
        _Section(_text(names, name), kind, flags, file[offset : offset + size], info, alignment)
        for name, kind, flags, _, offset, size, _, info, alignment, _ in raw
    ]


def _symbols(sections: Sequence[_Section]) -> list[_Symbol]:
    """Return the symbols of an object file, in their order."""
    [table] = [each for each in sections if each.kind == _SYMBOLS]
    names = next(each.data for each in sections if each.name == ".strtab")
    return [
        _Symbol(_text(names, name), section, value)
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(table.data)
    ]


def _text(table: bytes, place: int) -> str:
    return table[place : table.index(b"\0", place)].decode()
