"""A folder that cannot be served is refused in one sentence, before anything is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace_server.errors import CannotStart
from tailrace_server.log_root import check_log_root

if TYPE_CHECKING:
    from pathlib import Path


def test_an_empty_folder_is_a_log_root(log_root: Path) -> None:
    check_log_root(log_root)


def test_a_folder_of_catalogs_is_one_whatever_lies_beside_them(log_root: Path) -> None:
    (log_root / "shop").mkdir()
    (log_root / "shop" / "catalog.json").touch()
    (log_root / "README").touch()
    (log_root / ".hidden").touch()
    check_log_root(log_root)


def test_a_catalog_that_is_just_being_made_does_no_harm(log_root: Path) -> None:
    (log_root / "shop").mkdir()
    check_log_root(log_root)


def test_what_is_missing_is_named(log_root: Path) -> None:
    with pytest.raises(CannotStart, match=r"--log .*/nowhere: no such folder"):
        check_log_root(log_root / "nowhere")


def test_a_file_is_none(log_root: Path) -> None:
    (log_root / "file").touch()
    with pytest.raises(CannotStart, match="a file; give a folder"):
        check_log_root(log_root / "file")


def test_a_catalog_itself_is_none_and_the_right_folder_is_named(log_root: Path) -> None:
    (log_root / "shop").mkdir()
    (log_root / "shop" / "catalog.json").touch()
    with pytest.raises(CannotStart, match=rf"serve the log root above it: {log_root}$"):
        check_log_root(log_root / "shop")


def test_a_folder_of_other_things_is_none(log_root: Path) -> None:
    for name in ("passwd", "hosts"):
        (log_root / name).touch()
    with pytest.raises(CannotStart, match="it has no catalog, but 'hosts' and 1 other files"):
        check_log_root(log_root)
