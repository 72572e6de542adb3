"""Helpers of compiled code: numbers at addresses, bits of validity; the encoders' tests use them at length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types

from tailrace_server.numba_tools import called, compiled, inlined, is_present, number_at

_int32_at = number_at(types.int32)


@compiled()
def read_int32(at: Any) -> Any:
    return _int32_at(at)


@compiled()
def is_row_present(validity: Any, row: Any) -> Any:
    return is_present(validity, row)


@inlined
def twice(number: Any) -> Any:
    return 2 * number


@called
def plus_one(number: Any) -> Any:
    return number + 1


@compiled(types.int64(types.int64))
def twice_plus_one(number: Any) -> Any:
    return plus_one(twice(number))


@given(number=st.integers(-(2**31), 2**31 - 1), skipped=st.integers(0, 7))
def test_a_number_is_read_at_any_address(number: int, skipped: int) -> None:
    octets = np.frombuffer(b"\xff" * skipped + number.to_bytes(4, "little", signed=True), np.uint8)
    assert read_int32(octets.ctypes.data + skipped) == number


@given(values=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=40))
def test_a_row_is_present_if_arrow_says_so(values: list[int | None]) -> None:
    validity = pa.array(values, pa.int8()).buffers()[0]
    address = 0 if validity is None else validity.address
    for row, value in enumerate(values):
        assert is_row_present(address, row) == (value is not None)


@pytest.mark.parametrize("number", [0, -3, 2**61])
def test_compiled_code_calls_inlined_and_called_functions(number: int) -> None:
    assert twice_plus_one(number) == 2 * number + 1
