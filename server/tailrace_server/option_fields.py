"""Fields of dataclasses that the command line makes its options from: each has its flag, help and form.

A form says how the values of a field are written on the command line::

    field          form        option
    batch_bytes    BYTES       --batch-bytes 256MiB
    strict         FLAG        --strict
    first_stands   choice(…)   --on-conflict stop, or first

Typer and argparse both read them. The options are made at each start of the command, so this module imports
nothing that is slow to import, and only the standard library beside the client.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.errors import InvalidRequest
from tailrace_server.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_T = TypeVar("_T")

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
    """The option of one field, or its argument, which is given by its place."""

    flag: str
    """With its dashes; empty for an argument."""
    help: str
    form: OptionForm
    panel: str | None
    """Heading under which the help lists the option; None: the first one."""
    default: Any
    """As the command line gives it; MISSING where the option must be given."""
    environment: str | None = None
    """Variable that gives the value if the command line does not."""
    is_optional: bool = False
    """True if None stays None: the field's default says that nothing was given."""

    @property
    def kind(self) -> Any:
        """Return the type of what the command line gives."""
        return self.form.kind if self.default is not None else self.form.kind | None

    def value(self, given: Any) -> Any:
        """Return the field's value.

        Raises:
            InvalidRequest: What the command line gives is not of the form.
        """
        return None if given is None and self.is_optional else self.form.parse(self.flag, given)


def option(
    flag: str,
    help: str,
    form: OptionForm,
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    panel: str | None = None,
    environment: str | None = None,
) -> Any:
    """Return a dataclass field with an option; with neither default nor factory it must be given."""
    if factory is not None:
        made = FieldOption(flag, help, form, panel, None, environment)
        return field(default_factory=factory, metadata={"option": made})
    is_optional = default is None
    shown = default if is_optional or default is MISSING else form.show(default)
    made = FieldOption(flag, help, form, panel, shown, environment, is_optional)
    return field(default=default, metadata={"option": made})


def argument(metavar: str, help: str, default: Any = MISSING) -> Any:
    """Return a dataclass field whose value is given by its place."""
    return option("", help, text(metavar), default)


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
    return {name: each.value(given[name]) for name, each in options_of(settings).items()}


def called_with(function: Callable[..., _T], given: Mapping[str, Any]) -> _T:
    """Call a command: parameters annotated with a dataclass of options get one made of the given values.

    Raises:
        InvalidRequest: A value is not of its option's form, or the command refuses it.
    """
    groups = groups_of(function)
    mine = {name for group in groups.values() for name in options_of(group)}
    made = {name: group(**values_of(group, given)) for name, group in groups.items()}
    return function(**made, **{name: each for name, each in given.items() if name not in mine})


def groups_of(function: Callable[..., Any]) -> dict[str, type]:
    """Return the dataclasses of options that a command takes, by the names of their parameters."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {
        name: each.annotation
        for name, each in parameters.items()
        if isinstance(each.annotation, type) and dataclasses.is_dataclass(each.annotation)
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


def whole(least: int, metavar: str | None = None) -> OptionForm:
    """Return the form of a whole number with a lower bound."""
    return OptionForm(kind=int, least=least, metavar=metavar)


def _parse_bytes(flag: str, text: str) -> int:
    amount = _parse_bytes_or_none(flag, text)
    if not amount:
        raise InvalidRequest(f"{flag} {text!r}: it must be at least 1")
    return amount


def _parse_bytes_or_none(flag: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InvalidRequest(f"{flag} {text!r}: {error}") from error


def _parse_seconds(flag: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidRequest(f"{flag} {text!r}: {error}") from error


FLAG: Final = OptionForm(kind=bool)
BYTES: Final = OptionForm(kind=str, parse=_parse_bytes, show=format_bytes, metavar="BYTES")
BYTES_OR_NONE: Final = dataclasses.replace(BYTES, parse=_parse_bytes_or_none)
SECONDS: Final = OptionForm(
    kind=str,
    parse=_parse_seconds,
    show=lambda seconds: format_seconds(seconds) if seconds else "0",
    metavar="SECONDS",
)
TIME: Final = dataclasses.replace(SECONDS, metavar="TIME")
FOLDER: Final = OptionForm(kind=Path, parse=lambda _, folder: folder.absolute(), metavar="DIR")


def text(metavar: str) -> OptionForm:
    """Return the form of a text that is taken as it is."""
    return OptionForm(kind=str, metavar=metavar)


def texts(metavar: str) -> OptionForm:
    """Return the form of texts, each given with the flag again; its option has a factory."""
    return OptionForm(kind=list[str], parse=lambda _, given: tuple(given or ()), metavar=metavar)
