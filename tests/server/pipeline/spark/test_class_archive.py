"""`spark.class_archive` and `prepare_spark`: where an archive lies, who uses it, who has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace_server.pipeline import prepare_spark
from tailrace_server.pipeline.prepare_spark import ArchiveNotMade
from tailrace_server.pipeline.spark.java import archive_name, is_to_be_offered, options_to_use

_MAKE = """
import sys
sys.prefix = sys.base_prefix  # so that it goes to the cache folder of the environment
from tailrace_server.pipeline.prepare_spark import prepare
print(prepare())
"""

_MADE_ALREADY = """
import os
from tailrace_server.pipeline.spark.java import archive_name
from tailrace_server.pipeline.spark.java import ensure_java, kept_folders
name = archive_name(ensure_java())
print("", *(folder / name for folder in kept_folders(os.environ) if (folder / name).is_file()), sep="\\n")
"""

_USE = """
import sys
if {elsewhere}:
    sys.prefix = sys.base_prefix
from pathlib import Path
from tailrace_server.pipeline.spark.session import spark_session
with spark_session("test", master="local[1]") as spark:
    assert spark.range(3).count() == 3
    machine = spark.sparkContext._gateway.proc.pid
    print(*{{line.split()[-1] for line in Path(f"/proc/{{machine}}/maps").read_text().splitlines()}})
"""


def run(script: str, cache: Path) -> str:
    """Run a script whose cache folder is this one; return what it printed last."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_session_maps_the_archive_that_was_made(tmp_path: Path) -> None:
    assert f"{tmp_path}/" not in run(_USE.format(elsewhere=True), tmp_path)
    # One that `make test-slow` has had made will do: to make another takes as long as the rest of this file.
    found = run(_MADE_ALREADY, tmp_path)
    archive = Path(found or run(_MAKE, tmp_path))
    assert not list(archive.parent.glob(".tailrace-spark-*")), "what was made aside is gone"
    assert str(archive) in run(_USE.format(elsewhere=not found), tmp_path).split()


def test_an_archive_is_of_one_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = Path("/usr/lib/jvm/one"), Path("/usr/lib/jvm/other")
    (tmp_path / archive_name(one)).touch()
    assert f"-XX:SharedArchiveFile={tmp_path}/{archive_name(one)}" in options_to_use(one).split()
    assert options_to_use(other) == ""


def test_a_java_without_an_archive_of_its_own_is_told_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_spark, "ensure_java", lambda: tmp_path)
    with pytest.raises(
        ArchiveNotMade, match=r"no archive of its own classes \(lib/server/classes\.jsa\)"
    ):
        prepare_spark.prepare()
    assert list(tmp_path.iterdir()) == []


def test_an_archive_is_offered_once_to_who_has_none_and_can_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bare, able, prepared = (tmp_path / name for name in ("bare", "able", "prepared"))
    for home in (able, prepared):
        (home / "lib" / "server").mkdir(parents=True)
        (home / "lib" / "server" / "classes.jsa").touch()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / archive_name(prepared)).touch()
    assert [is_to_be_offered(home) for home in (bare, prepared, able, able)] == [
        *(False, False),
        *(True, False),
    ]
