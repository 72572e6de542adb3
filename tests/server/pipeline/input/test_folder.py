"""The input must be a folder that can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.input.folder import check_input

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_will_do_whether_or_not_it_is_empty(tmp_path: Path) -> None:
    check_input(tmp_path)
    (tmp_path / "a.json").touch()
    check_input(tmp_path)


def test_what_is_no_folder_is_refused_by_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    with pytest.raises(InvalidRequest, match="a file; give the folder that contains it"):
        check_input(tmp_path / "a.json")
    with pytest.raises(InvalidRequest, match="there is no such folder"):
        check_input(tmp_path / "absent")
