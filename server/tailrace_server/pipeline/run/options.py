"""Fields of settings that the command line makes its options from: each has its flag, help and form.

A form says how the values of a field are written on the command line::

    field          form        option
    batch_bytes    BYTES       --batch-bytes 256MiB
    strict         FLAG        --strict
    first_stands   choice(…)   --on-conflict stop, or first

The options are made at each start of the command, so this module imports nothing that is slow to import.

Options that all sources share are here too: the outlets of the metrics. The port is for an ingest that runs on,
the file for one that a scheduler starts (docs/adr/0047).
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest
from tailrace_server.units import Address, format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READING: Final = "How lines are read"
GROUPING: Final = "How rows become versions"
RUNNING: Final = "How it runs"
"""Headings that the help lists options under."""


@dataclass(frozen=True, kw_only=True)
class OptionForm:
    """How values of one kind are written on the command line."""

    kind: Any
    """Type of what the command line gives."""
    parse: Callable[[str, Any], Any] = lambda _, given: given
    """Turns the flag and what the command line gives into the field's value."""
    show: Callable[[Any], Any] = lambda value: value
    """Turns the field's default into what the command line shows."""
    metavar: str | None = None
    least: int | None = None
    """The smallest number that is accepted."""


@dataclass(frozen=True)
class FieldOption:
    """The option of one field."""

    flag: str
    help: str
    form: OptionForm
    panel: str | None
    default: Any
    """As the command line gives it; MISSING where the option must be given."""


def option(
    flag: str,
    help: str,
    form: OptionForm,
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    panel: str | None = None,
) -> Any:
    """Return a dataclass field with an option; with neither default nor factory it must be given."""
    if factory is not None:
        made = FieldOption(flag, help, form, panel, default=None)
        return field(default_factory=factory, metadata={"option": made})
    shown = default if default is MISSING else form.show(default)
    return field(default=default, metadata={"option": FieldOption(flag, help, form, panel, shown)})


def options_of(settings: type) -> dict[str, FieldOption]:
    """Return the options of the fields of settings by field name, in their order."""
    return {
        each.name: each.metadata["option"]
        for each in dataclasses.fields(settings)
        if "option" in each.metadata
    }


def values_of(settings: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that have options, from what the command line gives.

    Raises:
        InvalidRequest: One is not of its form.
    """
    return {
        name: each.form.parse(each.flag, given[name]) for name, each in options_of(settings).items()
    }


def choice(first: str, second: str, metavar: str) -> OptionForm:
    """Return the form of a field that is true where the second word is chosen."""

    def parse(flag: str, word: str) -> bool:
        if word not in (first, second):
            raise InvalidRequest(f"{flag} {word!r}: choose {first} or {second}")
        return word == second

    return OptionForm(
        kind=str, parse=parse, show=lambda value: second if value else first, metavar=metavar
    )


def one_of(words: Sequence[str], metavar: str) -> OptionForm:
    """Return the form of a field that is one of some words."""

    def parse(flag: str, word: str) -> str:
        if word not in words:
            raise InvalidRequest(f"{flag} {word!r}: choose {', '.join(words[:-1])} or {words[-1]}")
        return word

    return OptionForm(kind=str, parse=parse, metavar=metavar)


def whole(least: int) -> OptionForm:
    """Return the form of a whole number with a lower bound."""
    return OptionForm(kind=int, least=least)


def _parse_bytes(flag: str, text: str) -> int:
    try:
        amount = parse_bytes(text)
    except ValueError as error:
        raise InvalidRequest(f"{flag} {text!r}: {error}") from error
    if not amount:
        raise InvalidRequest(f"{flag} {text!r}: it must be at least 1")
    return amount


def _parse_seconds(flag: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidRequest(f"{flag} {text!r}: {error}") from error


FLAG: Final = OptionForm(kind=bool)
BYTES: Final = OptionForm(kind=str, parse=_parse_bytes, show=format_bytes, metavar="BYTES")
SECONDS: Final = OptionForm(
    kind=str,
    parse=_parse_seconds,
    show=lambda seconds: format_seconds(seconds) if seconds else "0",
    metavar="SECONDS",
)
FOLDER: Final = OptionForm(kind=Path, parse=lambda _, folder: folder.absolute(), metavar="DIR")


def text(metavar: str) -> OptionForm:
    """Return the form of a text that is taken as it is."""
    return OptionForm(kind=str, metavar=metavar)


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
