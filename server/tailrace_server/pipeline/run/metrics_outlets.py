"""The outlets of an ingest's metrics: an HTTP port for long runs, a file for runs that a scheduler starts.

See docs/adr/0047.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import RUNNING, OptionForm, option
from tailrace_server.units import Address

_ENDING: Final = ".prom"
"""The only file ending that node_exporter reads."""
_LOOPBACK: Final = "127.0.0.1"


def _parse_address(flag: str, text: str) -> Address:
    try:
        return Address.parse(f"{_LOOPBACK}:{text}" if text.isdecimal() else text)
    except ValueError as error:
        raise InvalidRequest(f"{flag} {text!r}: {error}, or a port alone") from error


def _parse_file(flag: str, file: Path) -> Path:
    if file.suffix != _ENDING:
        raise InvalidRequest(
            f"{flag} {file}: node_exporter reads only files that end in {_ENDING}; choose such a name"
        )
    return file.absolute()


@dataclass(frozen=True, slots=True)
class MetricsOutlets:
    """The outlets of the metrics of an ingest; by default none."""

    address: Address | None = option(
        "--metrics",
        "Serve /metrics at this address while the ingest runs; a port alone means loopback.",
        OptionForm(kind=str, parse=_parse_address, metavar="HOST:PORT"),
        None,
        panel=RUNNING,
    )
    file: Path | None = option(
        "--metrics-file",
        "Write the metrics to a .prom file for node_exporter; the last ones remain after the end.",
        OptionForm(kind=Path, parse=_parse_file, metavar="FILE"),
        None,
        panel=RUNNING,
    )
