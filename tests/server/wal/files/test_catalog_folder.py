"""Catalog folders. Creating, dropping and replacing catalogs: tests/server/wal/test_catalog.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import InvalidRequest, LogUnreadable
from tailrace_server.wal.files.catalog_folder import (
    check_folders,
    check_name,
    create_folder,
    has_folder,
    is_catalog,
    list_catalogs,
    read_named,
    rename_dropped,
)


def test_a_folder_is_created_once_and_says_whose_it_is(log_root: Path) -> None:
    uuid = create_folder(log_root, "shop")
    assert uuid is not None
    assert create_folder(log_root, "shop") is None
    assert read_named(log_root, "shop").uuid == uuid
    assert [path.name for path in log_root.iterdir()] == ["shop"], "nothing is left beside it"


def test_only_folders_with_a_catalog_file_are_catalogs(log_root: Path) -> None:
    create_folder(log_root, "shop")
    (log_root / "notes").mkdir()
    assert has_folder(log_root, "notes")
    assert not is_catalog(log_root / "notes")
    rename_dropped(log_root, "shop")
    assert list_catalogs(log_root) == ()
    assert list_catalogs(log_root / "missing") == ()


def test_a_copy_under_another_name_and_a_missing_folder_are_refused(log_root: Path) -> None:
    create_folder(log_root, "shop")
    (log_root / "shop" / "log").rmdir()
    with pytest.raises(LogUnreadable, match="it has no folder log"):
        check_folders(log_root / "shop")
    (log_root / "shop").rename(log_root / "copy")
    with pytest.raises(LogUnreadable, match="names catalog 'shop'"):
        read_named(log_root, "copy")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "ä", "x" * 129])
def test_names_that_no_catalog_can_have(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)


@pytest.mark.parametrize(
    "url", ["s3://bucket/log", "gs://bucket", "hdfs://host:9000/log", "file:///log"]
)
def test_a_url_is_no_log_root_and_no_folder_is_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (Path(url), Path(url).absolute()):
        with pytest.raises(InvalidRequest, match="not a URL"):
            create_folder(root, "shop")
    assert not list(tmp_path.iterdir())
