"""The compiler, the linker and the words of loops, on small functions that are compiled for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.machine_code import loader
from tailrace_server.machine_code.loader import BYTE, INT, address
from tailrace_server.wal.record.text_columns import packed

if TYPE_CHECKING:
    from tailrace_server.machine_code.loader import Loop

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled() -> dict[str, Loop]:
    """Return small functions, compiled."""
    from tailrace_server.machine_code.builder import compiled_code
    from tailrace_server.machine_code.loops import primitives

    def read_int32(at: Any) -> Any:
        return primitives.int32_at(at)

    def is_row_present(validity: Any, row: Any) -> Any:
        return primitives.is_present(validity, row)

    def copied(to: Any, origin: Any, length: Any) -> Any:
        primitives.copy(to, origin, length)
        return length

    def place_of(text: Any, length: Any, stop: Any, offsets: Any, texts: Any) -> Any:
        return primitives.place_of(text, length, 0, stop, offsets, texts)

    functions = (read_int32, is_row_present, copied, place_of)
    return loader.mapped(*compiled_code({each.__name__: each for each in functions}))


@given(number=st.integers(-(2**31), 2**31 - 1), skipped=st.integers(0, 7))
def test_a_number_is_read_at_any_address(
    compiled: dict[str, Loop], number: int, skipped: int
) -> None:
    octets = np.frombuffer(b"\xff" * skipped + number.to_bytes(4, "little", signed=True), np.uint8)
    assert compiled["read_int32"](address(octets, BYTE) + skipped) == number


@given(values=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=40))
def test_a_row_is_present_if_arrow_says_so(
    compiled: dict[str, Loop], values: list[int | None]
) -> None:
    validity = pa.array(values, pa.int8()).buffers()[0]
    at = 0 if validity is None else validity.address
    for row, value in enumerate(values):
        assert compiled["is_row_present"](at, row) == (value is not None)


@given(text=st.binary(max_size=300), behind=st.binary(min_size=1, max_size=80))
def test_a_copy_writes_no_byte_beyond_its_length(
    compiled: dict[str, Loop], text: bytes, behind: bytes
) -> None:
    origin = np.frombuffer(text + behind, np.uint8)
    to = np.full(len(origin), 7, np.uint8)
    compiled["copied"](address(to, BYTE), address(origin, BYTE), len(text))
    assert to.tobytes() == text + b"\7" * len(behind)


@given(texts=st.lists(st.binary(max_size=20), max_size=6), text=st.binary(max_size=20))
def test_a_text_is_looked_up_among_others(
    compiled: dict[str, Loop], texts: list[bytes], text: bytes
) -> None:
    offsets, octets = packed(texts)
    for each in (text, *texts):
        wanted = np.frombuffer(each or b"\0", np.uint8)
        found = compiled["place_of"](
            *(address(wanted, BYTE), len(each), len(texts)),
            *(address(offsets, INT), address(octets, BYTE)),
        )
        assert found == (texts.index(each) if each in texts else -1)


def test_code_that_needs_more_than_itself_is_refused() -> None:
    """A division may fail, and numba raises that by Python."""
    from tailrace_server.machine_code.builder import compiled_code

    def divided(number: Any) -> Any:
        return 10 // number

    with pytest.raises(ValueError, match=r"the code calls .*, which is not in it"):
        compiled_code({"divided": divided})
