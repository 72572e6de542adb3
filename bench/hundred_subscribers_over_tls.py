"""What does TLS cost a hundred subscribers, and how much of bare grpc.aio over TLS does the server reach?

::

    log of 200,000 captures ──▶ tailrace ──▶ 100 raw subscribers      (catch-up), over TLS and in plain text
    constant bytes          ──▶ grpc.aio ──▶ 100 raw subscribers      (baseline, same message size), likewise

Captures of 200 bytes, 327 a message. One connection carries all streams, so it has one handshake, which is not
in the figures. The server has the first core, subscribers the second. It does not show a network, nor what a
client pays to decrypt: subscribers are on the other core.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from bench._harness import (
    bare_server,
    machine,
    median,
    result,
    server,
    stay_with_the_subscribers,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import measure_capture_bytes, write_log
from bench.one_log_hundred_subscribers import rates, warm_up, write_warm_up
from tests.support.certificates import Authority

STREAMS = 100
CAPTURES = 200_000
"""To each subscriber."""
RUNS = 3


class Files(NamedTuple):
    """Of TLS."""

    certificate: str
    key: str
    ca: str


def tailrace(root: Path, size: int, tls: Files | None) -> tuple[float, float]:
    """Return captures a second and server CPU µs a capture, from the oldest position."""
    options = () if tls is None else ("--tls-certificate", tls.certificate, "--tls-key", tls.key)
    ca = None if tls is None else tls.ca
    asked = {"capture_bytes": size, "ca": ca}
    with server(tailrace_server(root, *options)) as subject:
        warm_up(subject, size, ca)
        before = subject.cpu_s()
        with subscribers(subject.address, STREAMS, CAPTURES, **asked) as process:
            report = result(process)
        return rates(report, subject.cpu_s() - before)


def bare(size: int, tls: Files | None) -> tuple[float, float]:
    """Return the same for constant bytes."""
    captures_a_message = 65536 // size
    messages = CAPTURES // captures_a_message
    wanted = messages * captures_a_message
    files = () if tls is None else tls[:2]
    asked = {"capture_bytes": size, "go": True, "ca": None if tls is None else tls.ca}
    with server(bare_server(messages, captures_a_message, size, *files)) as subject:
        with subscribers(subject.address, 2, wanted, **asked) as process:
            result(process)
        before = subject.cpu_s()
        with subscribers(subject.address, STREAMS, wanted, **asked) as process:
            report = result(process)
        return rates(report, subject.cpu_s() - before)


def main() -> None:
    """Measure and print."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "logs"
        root.mkdir()
        write_log(root, rows=CAPTURES, rows_per_transaction=100, transactions_per_commit=2000)
        write_warm_up(root)
        size = measure_capture_bytes(root)
        authority = Authority()
        written = (*authority.server().write(Path(folder)), authority.write(Path(folder)))
        files = Files(*map(str, written))
        rows = []
        for name, tls in (("TLS", files), ("plain text", None)):
            runs = [(bare(size, tls), tailrace(root, size, tls)) for _ in range(RUNS)]
            figures = [
                [median([run[kind][figure] for run in runs]) for figure in (0, 1)]
                for kind in (0, 1)
            ]
            ratios = [
                median([run[1][0] / run[0][0] for run in runs]),
                median([run[0][1] / run[1][1] for run in runs]),
            ]
            rows.append(
                [
                    name,
                    *(f"{each[0] / 1e6:.2f} M/s, {each[1]:.3f} µs" for each in figures),
                    *(f"{each:.2f}" for each in ratios),
                ]
            )
        table(
            f"{STREAMS} subscribers, captures of {size} bytes, {CAPTURES:,} to each; captures/s and server "
            f"CPU a capture, median of {RUNS} runs",
            ["over", "bare grpc.aio", "catch-up", "rate / bare", "CPU of bare / CPU"],
            rows,
        )


if __name__ == "__main__":
    main()
