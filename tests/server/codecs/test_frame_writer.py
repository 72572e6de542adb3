"""The compiled encoder writes the bytes that the plain one does, cut into messages at the same frames."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.codecs.columns import join_into_messages
from tailrace_server.codecs.protobuf import encode_one_by_one, write_messages
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.wal.record.text_columns import NameLists, Texts
from tests.server.codecs.batches import BODIES, captures, columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.codecs import CaptureColumns

LOOPS = loops_made()


def compiled(batch: CaptureColumns) -> list[bytes]:
    """Return the frames that the compiled encoder writes."""
    found = write_messages(LOOPS, batch, 1_000)
    data, offsets = b"".join(found.data), found.offsets.tolist()
    return [data[start:stop] for start, stop in pairwise(offsets)]


@given(
    rows=st.lists(captures, min_size=1, max_size=12),
    by_column=st.booleans(),
    wanted=st.sets(st.sampled_from(BODIES)),
    data=st.data(),
)
def test_one_by_one_and_compiled_are_the_same_bytes(
    rows: list[dict[str, Any]], by_column: bool, wanted: set[str], data: st.DataObject
) -> None:
    whole = columns(rows, by_column=by_column, wanted=wanted)
    assert compiled(whole) == encode_one_by_one(whole)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12).map(sorted))
    places = np.array(chosen, np.int32)
    some = replace(
        whole,
        rows=places,
        versions=whole.versions[places],
        indexes=whole.indexes[places],
        timestamps=whole.timestamps[places],
        **_containers(whole, places),
    )
    assert compiled(some) == encode_one_by_one(some)


def _containers(whole: CaptureColumns, places: NDArray[np.int32]) -> dict[str, Any]:
    if whole.container_types is None or whole.container_names is None or whole.ordinals is None:
        return {}
    return {
        "ordinals": whole.ordinals[places],
        "container_types": whole.container_types[places],
        "container_names": tuple(whole.container_names[place] for place in places),
    }


@given(rows=st.lists(captures, min_size=2, max_size=12), data=st.data())
def test_slices_of_arrays_are_read_from_where_they_begin(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, len(rows) - 1))
    whole = columns(rows, by_column=False, wanted=set(BODIES))
    part = columns(rows[start:], by_column=False, wanted=set(BODIES))
    sliced = replace(
        part,
        keys=Texts.of(whole.keys.array[start:]),
        names=NameLists.of(whole.names.array[start:]),
        texts={name: Texts.of(body.array[start:]) for name, body in whole.texts.items()},
    )
    assert compiled(sliced) == compiled(part)


@given(rows=st.lists(captures, min_size=1, max_size=12), message_bytes=st.integers(1, 3_000))
def test_messages_are_cut_where_the_plain_encoder_cuts_them(
    rows: list[dict[str, Any]], message_bytes: int
) -> None:
    whole = columns(rows, by_column=False, wanted=set(BODIES))
    found = write_messages(LOOPS, whole, message_bytes)
    plain = join_into_messages(encode_one_by_one(whole), message_bytes)
    assert (found.starts, found.data) == (plain.starts, plain.data)
    assert found.offsets.tolist() == plain.offsets.tolist()
