"""The outlets of an ingest's metrics: a port while it runs, a file also afterwards.

The port is for an ingest that stays, the file for one that a scheduler starts (docs/adr/0047).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.options import RUNNING, OptionForm, option
from tailrace_server.units import Address

_ENDING: Final = ".prom"
"""node_exporter passes over any other."""
_LOOPBACK: Final = "127.0.0.1"


def _parse_address(flag: str, text: str | None) -> Address | None:
    if text is None:
        return None
    try:
        return Address.parse(f"{_LOOPBACK}:{text}" if text.isdecimal() else text)
    except ValueError as error:
        raise InvalidRequest(f"{flag} {text!r}: {error}, or a port alone") from error


def _parse_file(flag: str, file: Path | None) -> Path | None:
    if file is not None and file.suffix != _ENDING:
        raise InvalidRequest(f"{flag} {file}: node_exporter reads only files that end in {_ENDING}")
    return None if file is None else file.absolute()


@dataclass(frozen=True, slots=True)
class MetricsOutlets:
    """The outlets of the metrics of an ingest; by default none."""

    address: Address | None = option(
        "--metrics",
        "Serve /metrics there while it runs; a port alone is on loopback.",
        OptionForm(kind=str | None, parse=_parse_address, metavar="HOST:PORT"),
        None,
        panel=RUNNING,
    )
    file: Path | None = option(
        "--metrics-file",
        "Keep the metrics in a .prom file for node_exporter, the last ones too.",
        OptionForm(kind=Path | None, parse=_parse_file, metavar="FILE"),
        None,
        panel=RUNNING,
    )
