"""The input must be a folder that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.input.folder import check_input, local_folder


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


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("/data/in", "/data/in"),
        ("file:/data/in", "/data/in"),
        ("file:///data/Eing%C3%A4nge%20neu", "/data/Eingänge neu"),
        ("FILE:///data/in", "/data/in"),
        ("/data/a:/b", "/data/a:/b"),
    ],
)
def test_a_folder_is_a_path_or_a_file_uri(given: str, folder: str) -> None:
    assert local_folder("--input", Path(given)) == Path(folder)


def test_a_relative_path_is_below_the_current_folder() -> None:
    assert local_folder("--log", Path("in")) == Path.cwd() / "in"


@pytest.mark.parametrize("uri", ["s3a://bucket/in", "hdfs://name/in", "dbfs:/in", "abfss://a@b/c"])
def test_a_folder_elsewhere_is_refused_with_what_to_do(uri: str) -> None:
    scheme = uri.partition(":")[0]
    with pytest.raises(InvalidRequest, match=rf"^--input {scheme}:…: .* ForeachBatchSink$"):
        local_folder("--input", Path(uri))
    with pytest.raises(InvalidRequest, match=r"mount it on the driver and all workers$"):
        local_folder("--log", Path(uri))
