"""The port and the file: what is read there, while an ingest runs and afterwards."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from tailrace.errors import LogFull
from tailrace_server.errors import CannotStart
from tailrace_server.pipeline.run.metrics import IngestMetrics, exposed
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets
from tailrace_server.units import Address
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FREE = Address("127.0.0.1", 0)


def fresh() -> IngestMetrics:
    return IngestMetrics("shop", "debezium", version="1.2.3")


def test_the_port_answers_with_the_metrics_of_the_run_and_of_the_process() -> None:
    with exposed(fresh(), MetricsOutlets(address=FREE), pytest.fail) as address:
        assert address is not None
        with httpx.Client(base_url=f"http://{address}", trust_env=False) as http:
            answer = http.get("/metrics")
            assert (answer.status_code, answer.headers["content-type"]) == (
                200,
                "text/plain; version=0.0.4; charset=utf-8",
            )
            assert 'tailrace_ingest_running{catalog="shop"} 1.0' in answer.text
            assert "\nprocess_cpu_seconds_total " in answer.text
            assert http.get("/").status_code == 404
            # A page whose name was rebound to this machine reads nothing.
            foreign = http.get("/metrics", headers={"Host": "evil.example"})
            assert (foreign.status_code, "tailrace_ingest" in foreign.text) == (421, False)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.host, address.port))


def test_a_peer_that_says_nothing_keeps_nobody_from_the_metrics_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace_server.pipeline.run.metrics._Handler.timeout", 0.05)
    with exposed(fresh(), MetricsOutlets(address=FREE), pytest.fail) as address:
        assert address is not None
        with socket.create_connection((address.host, address.port)):
            assert httpx.get(f"http://{address}/metrics", trust_env=False).status_code == 200


def test_the_file_is_there_from_the_beginning_and_keeps_the_last_values(tmp_path: Path) -> None:
    file = tmp_path / "shop.prom"
    metrics = fresh()
    with exposed(metrics, MetricsOutlets(file=file), pytest.fail):
        assert 'tailrace_ingest_running{catalog="shop"} 1.0' in file.read_text()
        metrics.counters.rows = 7
    last = file.read_text()
    assert 'tailrace_ingest_rows_total{catalog="shop",source="debezium"} 7.0' in last
    assert 'tailrace_ingest_running{catalog="shop"} 0.0' in last
    assert 'tailrace_ingest_failed{catalog="shop",code=""} 0.0' in last
    # node_exporter has these of its own, and refuses a second one of a name.
    assert "process_" not in last
    assert [each.name for each in tmp_path.iterdir()] == ["shop.prom"]


def test_a_run_that_fails_leaves_its_code_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.prom"
    with pytest.raises(LogFull), exposed(fresh(), MetricsOutlets(file=file), pytest.fail):
        raise LogFull("no room")
    assert 'tailrace_ingest_failed{catalog="shop",code="LOG_FULL"} 1.0' in file.read_text()


def test_what_cannot_be_written_or_bound_is_said_before_the_run_begins(tmp_path: Path) -> None:
    absent = MetricsOutlets(file=tmp_path / "absent" / "shop.prom")
    with pytest.raises(CannotStart, match=r"--metrics-file .*: No such file or directory"):
        exposed(fresh(), absent, pytest.fail).__enter__()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(CannotStart, match=r"--metrics 127.*: address already in use"):
            exposed(fresh(), MetricsOutlets(address=address), pytest.fail).__enter__()


def test_a_file_that_can_be_written_no_more_is_told_once_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace_server.pipeline.run.metrics._WRITE_EVERY_S", 0.001)
    (tmp_path / "metrics").mkdir()
    file, told = tmp_path / "metrics" / "shop.prom", list[str]()
    with exposed(fresh(), MetricsOutlets(file=file), told.append):
        (tmp_path / "metrics").rename(tmp_path / "away")
        wait_until(lambda: bool(told))
    assert told == [f"cannot write --metrics-file {file}: No such file or directory"]
