"""Where metrics go, as the command line says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import values_of
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets


def outlets(address: str | None = None, file: Path | None = None) -> MetricsOutlets:
    return MetricsOutlets(**values_of(MetricsOutlets, {"address": address, "file": file}))


def test_a_port_alone_is_on_loopback_and_nothing_is_the_default() -> None:
    assert outlets() == MetricsOutlets()
    assert outlets("9464").address == ("127.0.0.1", 9464)
    assert outlets("0.0.0.0:9464").address == ("0.0.0.0", 9464)
    assert outlets(file=Path("/run/shop.prom")).file == Path("/run/shop.prom")


def test_what_could_not_work_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"--metrics 'here': .*host:port.*, or a port alone"):
        outlets("here")
    with pytest.raises(InvalidRequest, match=r"--metrics-file shop.txt: .* end in .prom"):
        outlets(file=Path("shop.txt"))
