"""The settings of a session that we start: the operator's come first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.spark import session
from tailrace_server.pipeline.spark.cluster import (
    ClusterUnusable,
    _probe,
    advice_on,
    check_master,
    warnings_in,
)
from tailrace_server.pipeline.spark.java import JavaMissing
from tailrace_server.pipeline.spark.session import (
    _of_cluster,
    _of_local,
    _submitting,
    ensure_startable,
)
from tailrace_server.pipeline.spark.start_settings import SparkOptions, is_local, stated_settings
from tests.support.held_port import HeldPort

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let tests change the variables that a start of Spark sets."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, "-")
        monkeypatch.delenv(name)
    for name in ("PYSPARK_SUBMIT_ARGS", "MASTER", "SPARK_DRIVER_MEMORY", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_a_later_place_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\n"
        "spark.master            spark://a:1\n"
        "spark.driver.memory=1g\n"
        "spark.ui.port : 4041\n"
        "spark.executor.cores\t2\n"
        "spark.empty\n"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.driver.memory=3g pyspark-shell")
    given = "--master spark://b:1 --conf spark.ui.port=4042 --name='the ingest'"
    assert stated_settings(given, {"spark.master": "spark://c:1"}) == {
        "spark.master": "spark://c:1",
        "spark.driver.memory": "3g",
        "spark.ui.port": "4042",
        "spark.executor.cores": "2",
        "spark.empty": "",
        "spark.app.name": "the ingest",
    }


def test_variables_of_spark_come_before_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER", "spark://a:1")
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "3g")
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 4g\n")
    assert stated_settings("", {}) == {"spark.master": "spark://a:1", "spark.driver.memory": "4g"}


def test_a_file_of_properties_replaces_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://a:1\n")
    (tmp_path / "other.conf").write_text("spark.driver.memory 5g\n")
    found = stated_settings(f"--properties-file {tmp_path / 'other.conf'}", {})
    assert found == {"spark.driver.memory": "5g"}


@pytest.mark.parametrize(
    ("master", "local"),
    [(None, True), ("local", True), ("local[4]", True), ("spark://a:1", False), ("yarn", False)],
)
def test_conveniences_are_for_local_masters(master: str | None, local: bool) -> None:
    assert is_local(master) is local


def test_a_cluster_gets_no_setting_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = _of_cluster({"spark.pyspark.python": "env/bin/python"}, "")
    assert os.environ["PYSPARK_PYTHON"] == "env/bin/python"
    assert {"SPARK_LOCAL_IP", "PYTHONSAFEPATH"}.isdisjoint(os.environ)
    here = ("bindAddress", "local.dir", "driver.memory", "ui.enabled", "shuffle", "adaptive")
    assert not [name for name in ours if any(each in name for each in here)]
    assert _of_local({}, "", quick=True)["spark.driver.bindAddress"] == "127.0.0.1"


def test_arguments_of_spark_submit_stay_for_the_start_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    with _submitting("--archives env.tar.gz#env"):
        words = os.environ["PYSPARK_SUBMIT_ARGS"].split()
    assert words == ["--verbose", "--archives", "env.tar.gz#env", "pyspark-shell"]
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"


def test_options_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"--conf 'spark\.ui\.port': write a setting"):
        SparkOptions(conf=("spark.ui.port",)).settings()
    with pytest.raises(InvalidRequest, match="arguments of spark-submit"):
        stated_settings("--name 'open", {})
    assert SparkOptions(conf=("a.b=c=d",)).settings() == {"a.b": "c=d"}


def test_a_master_that_does_not_answer_is_named() -> None:
    port = HeldPort()
    with pytest.raises(ClusterUnusable, match=f"{port.address}: connection refused"):
        check_master(f"spark://{port.address}")
    port.close()
    with pytest.raises(ClusterUnusable, match="check --master"):
        check_master("spark://127.0.0.1")
    check_master("yarn")


def test_a_host_without_the_folder_names_itself(tmp_path: Path) -> None:
    assert _probe(None)(0) is None
    assert _probe(str(tmp_path))(0) is None
    assert _probe(str(tmp_path / "absent"))(0)


def test_faults_of_the_workers_python_have_advice() -> None:
    assert "spark.pyspark.python" in advice_on("[PYTHON_VERSION_MISMATCH] worker has 3.9")
    assert "--archives" in advice_on("ModuleNotFoundError: No module named 'pyarrow'")
    assert advice_on("out of memory") == ""


def test_the_last_warning_of_spark_is_the_reason() -> None:
    lines = ["10:00:00.000 WARN A: first", "10:00:01.000 WARN B: last: one", "10:00:02 ERROR C: x"]
    assert warnings_in(lines) == "last: one"
    assert warnings_in([]) == ""


def test_java_is_needed_only_to_start_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise JavaMissing(("JAVA_HOME: none",))

    monkeypatch.setattr(session, "ensure_java", none)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(JavaMissing):
        ensure_startable()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    ensure_startable()
