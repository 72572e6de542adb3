"""Ingests on a standalone cluster: killed workers and drivers, and clusters that cannot run an ingest."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace_server.sample_shop.topics import make_feed, write_feed
from tests.process.ingest.killable import Killable, end
from tests.process.ingest.reading import published, records
from tests.process.ingest.test_kills import Ingest
from tests.rules.test_documented_programs import blocks
from tests.support.polling import wait_until
from tests.support.standalone import DRIVER_HOST, StandaloneCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONF = (
    # No result may depend on these.
    *("--conf", "spark.sql.session.timeZone=Asia/Tokyo"),
    *("--conf", "spark.sql.adaptive.enabled=true"),
    *("--conf", "spark.executor.memory=512m"),
    *("--conf", "spark.driver.memory=512m"),
    *("--conf", "spark.speculation=true"),
    *("--conf", "spark.speculation.interval=10ms"),
    *("--conf", "spark.speculation.multiplier=1"),
)
TRANSACTIONS = 60
SUBMIT = os.path.join(os.path.dirname(sys.executable), "spark-submit")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), 2) as made:
        yield made


@pytest.fixture(autouse=True)
def address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the driver an address of its own, which is not that of the workers."""
    monkeypatch.setenv("SPARK_LOCAL_IP", DRIVER_HOST)


class OnCluster(Killable):
    """An ingest on a cluster, of the input of another ingest."""

    def __init__(
        self,
        local: Ingest,
        log_root: Path,
        folder: Path,
        master: str,
        python: str,
        *more: str,
        module: str = "tailrace_server",
    ) -> None:
        self.catalog = log_root / "shop"
        super().__init__(
            folder,
            *(module, "ingest", "debezium", "--input", local.input),
            *("--log", log_root, "--catalog", "shop", "--transaction-idle", "1h"),
            *("--batch-bytes", "100KiB", "--small-batch-rows", "0", "--key", "*=id"),
            *("--whole-before", "*", "--master", master, *CONF),
            *("--conf", f"spark.pyspark.python={python}", *more),
        )


def test_a_cluster_that_loses_a_worker_and_drivers_writes_the_log_of_a_local_ingest(
    cluster: StandaloneCluster, spark: SparkSession, tmp_path: Path, log_root: Path
) -> None:
    local = Ingest(tmp_path, log_root, large=True)
    for _ in write_feed(make_feed(7, TRANSACTIONS), local.input, parts=4):
        pass
    local.run_in(spark)
    expected = records(local.catalog)
    there = log_root.with_name("there")
    there.mkdir()
    ingest = OnCluster(local, there, tmp_path, cluster.url, sys.executable)
    # 1. A worker dies after the first commit: the other one does its tasks. Then the driver dies.
    process = ingest.start()
    try:
        wait_until(lambda: process.poll() is not None or _published(ingest) > 0, 120)
        end(cluster.workers[0])
        before = _published(ingest)
        wait_until(lambda: process.poll() is not None or _published(ingest) > before, 120)
        assert process.poll() is None, ingest.said()
    finally:
        end(process)
    # 2. The next driver continues.
    assert ingest.run() == 0, ingest.said()
    assert records(ingest.catalog) == expected


def _published(ingest: OnCluster) -> int:
    return published(ingest.catalog) if (ingest.catalog / "log").is_dir() else 0


def test_workers_without_our_package_are_reported_with_what_to_ship(
    cluster: StandaloneCluster, tmp_path: Path, log_root: Path
) -> None:
    bare = os.path.join(sys.base_prefix, "bin", "python3")
    ingest = OnCluster(Ingest(tmp_path, log_root), log_root, tmp_path, cluster.url, bare)
    (tmp_path / "Eingänge").mkdir()
    assert ingest.run() == 1
    assert "No module named 'tailrace_server'" in ingest.said()
    assert "the workers lack this Python package" in ingest.said()
    assert "Traceback" not in ingest.said()


def test_a_cluster_without_executors_is_reported_with_the_reason_of_spark(
    cluster: StandaloneCluster, tmp_path: Path, log_root: Path
) -> None:
    local = Ingest(tmp_path, log_root)
    local.input.mkdir()
    # Spark gives its reason after 15 s, unless it is told otherwise.
    more = ("--conf", "spark.executor.memory=8g", "--conf", "spark.starvation.timeout=1s")
    given = (local, log_root, tmp_path, cluster.url, sys.executable, *more)
    ingest = OnCluster(*given, module="tests.process.ingest.impatient")
    assert ingest.run() == 2
    assert "the cluster offered no executor within 8 s" in ingest.said()
    assert "Spark says: Initial job has not accepted any resources" in ingest.said()


def test_a_signal_ends_the_wait_for_executors(
    cluster: StandaloneCluster, tmp_path: Path, log_root: Path
) -> None:
    local = Ingest(tmp_path, log_root)
    local.input.mkdir()
    more = ("--conf", "spark.executor.memory=8g")
    ingest = OnCluster(local, log_root, tmp_path, cluster.url, sys.executable, *more)
    process = ingest.start()
    try:
        probes = local.catalog
        wait_until(lambda: process.poll() is not None or any(probes.glob(".probe-*")), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        end(process)
    assert "offered no executor" not in ingest.said()
    assert not list(probes.glob(".probe-*"))


def test_a_url_that_spark_does_not_know_is_reported_without_a_stack_trace(
    tmp_path: Path, log_root: Path
) -> None:
    local = Ingest(tmp_path, log_root)
    local.input.mkdir()
    ingest = OnCluster(local, log_root, tmp_path, "sparks://nowhere:1", sys.executable)
    assert ingest.run() == 2
    assert "sparks://nowhere:1" in ingest.said()
    assert "\tat " not in ingest.said()


def test_a_program_runs_under_spark_submit_with_its_settings(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A session of ours adds nothing to those of ``spark-submit``."""
    program = tmp_path / "program.py"
    program.write_text(
        "from tailrace_server.pipeline.spark.session import spark_session\n"
        "with spark_session('ours') as spark:\n"
        "    conf = spark.sparkContext.getConf()\n"
        "    names = ('spark.master', 'spark.driver.memory', 'spark.app.name')\n"
        "    print([conf.get(name) for name in names])\n"
        "    print(conf.get('spark.driver.bindAddress'), spark.conf.get('spark.sql.adaptive.enabled'))\n"
    )
    done = subprocess.run(
        [SUBMIT, "--master", cluster.url, "--driver-memory", "600m", "--name", "theirs", program],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [f"['{cluster.url}', '600m', 'theirs']", "None true"]


def test_the_page_submits_the_program_of_the_page_on_spark(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    (program,) = blocks("spark.md", "A batch", "python")
    (command,) = blocks("deploy-spark.md", "Your own program", "sh")
    words = shlex.split(command.replace("\\\n", " "))
    told = {"spark://MASTER:7077": cluster.url, "spark-submit": SUBMIT}
    words = [told.get(each, each) for each in words]
    words = [each.replace("/opt/tailrace/bin/python", sys.executable) for each in words]
    # The program names its log by a path below the current folder, which is not that of a worker.
    (tmp_path / "batch.py").write_text(program.replace('"log", "log"', f'"log", "{tmp_path}/log"'))
    subprocess.run(
        [*words[:1], "--conf", "spark.executor.memory=512m", *words[1:]],
        cwd=tmp_path,
        # As in an activated environment: Spark's scripts look for their home with the first Python.
        env=os.environ | {"PATH": f"{os.path.dirname(SUBMIT)}{os.pathsep}{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        timeout=240,
    )
    assert published(tmp_path / "log" / "shop") == 3
