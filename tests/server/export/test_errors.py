"""Errors of an export: what they say; when they are raised is tested in `test_cdcv2.py`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace_server.export.errors import FolderTaken, ImageUnfit

if TYPE_CHECKING:
    from tailrace.errors import TailraceError

ERRORS: dict[str, tuple[TailraceError, dict[str, str]]] = {
    "out holds notes.txt; choose another folder": (
        FolderTaken(Path("out"), "holds notes.txt"),
        {"folder": "out"},
    ),
    "version 7, key '1': column 'price' is null or absent; continue in a new folder, with --since 7, "
    "whose stream uses types that hold the whole history": (
        ImageUnfit(7, "1", "column 'price' is null or absent"),
        {"version": "7", "key": "1"},
    ),
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_says_what_to_do_and_goes_to_another_process(text: str) -> None:
    error, figures = ERRORS[text]
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert (str(each), each.figures(), each.retriable) == (text, figures, False)
