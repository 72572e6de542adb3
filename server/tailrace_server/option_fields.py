"""Dataclass fields from which the command line makes its options: each has a flag, a help text and a form.

The form of a field is the way in which its values are written on the command line::

    field          form        option
    batch_bytes    BYTES       --batch-bytes 256MiB
    strict         FLAG        --strict
    first_stands   choice(…)   --on-conflict stop, or first

Typer and argparse both use these options. They are made at each start of the command, so this module imports
only the standard library and the client, which load fast.
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
"""Headings under which the help lists options."""


@dataclass(frozen=True, kw_only=True)
class OptionForm:
    """The way in which values of one kind are written on the command line."""

    kind: Any
    """Type of the value that the command line parser returns."""
    parse: Callable[[str, Any], Any] = lambda _, given: given
    """Function of the flag and the parser's value that returns the field's value."""
    show: Callable[[Any], Any] = lambda value: value
    """Function of the field's default that returns its form on the command line."""
    metavar: str | None = None
    least: int | None = None
    """The smallest accepted number; None: no bound."""


@dataclass(frozen=True)
class FieldOption:
    """The command-line option of one field, or its positional argument."""

    flag: str
    """The flag with its dashes; empty for an argument."""
    help: str
    form: OptionForm
    panel: str | None
    """Heading under which the help lists the option; None: the first one."""
    default: Any
    """The default, in the form of the command line; MISSING if the option is required."""
    environment: str | None = None
    """Environment variable with the value if the command line has none; None: no variable."""
    is_optional: bool = False
    """True if the field's default is None, which means that no value was given."""

    @property
    def kind(self) -> Any:
        """The type of the value that the command line parser returns."""
        return self.form.kind if self.default is not None else self.form.kind | None

    def value(self, given: Any) -> Any:
        """Return the field's value for a value of the command line parser.

        Raises:
            InvalidRequest: The value does not have the form of the option.
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
    """Return a dataclass field with an option, which is required if it has neither default nor factory."""
    if factory is not None:
        made = FieldOption(flag, help, form, panel, None, environment)
        return field(default_factory=factory, metadata={"option": made})
    is_optional = default is None
    shown = default if is_optional or default is MISSING else form.show(default)
    made = FieldOption(flag, help, form, panel, shown, environment, is_optional)
    return field(default=default, metadata={"option": made})


def argument(metavar: str, help: str, default: Any = MISSING) -> Any:
    """Return a dataclass field with a positional argument."""
    return option("", help, text(metavar), default)


def options_of(settings: type) -> dict[str, FieldOption]:
    """Return the options of a dataclass by field name, in the order of the fields."""
    return {
        each.name: each.metadata["option"]
        for each in dataclasses.fields(settings)
        if "option" in each.metadata
    }


def values_of(settings: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all fields with options, from the values of the command line parser.

    Raises:
        InvalidRequest: A value does not have the form of its option.
    """
    return {name: each.value(given[name]) for name, each in options_of(settings).items()}


def called_with(function: Callable[..., _T], given: Mapping[str, Any]) -> _T:
    """Call a command; make the dataclasses of options that its parameters have from the given values.

    Raises:
        InvalidRequest: A value does not have the form of its option, or the command refuses it.
    """
    groups = groups_of(function)
    mine = {name for group in groups.values() for name in options_of(group)}
    made = {name: group(**values_of(group, given)) for name, group in groups.items()}
    return function(**made, **{name: each for name, each in given.items() if name not in mine})


def groups_of(function: Callable[..., Any]) -> dict[str, type]:
    """Return the dataclasses of options that a command has as parameters, by parameter name."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {
        name: each.annotation
        for name, each in parameters.items()
        if isinstance(each.annotation, type) and dataclasses.is_dataclass(each.annotation)
    }


def choice(first: str, second: str, metavar: str) -> OptionForm:
    """Return the form of a Boolean field: ``first`` is False, ``second`` is True."""

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
    """Return the form of a text, which is not changed."""
    return OptionForm(kind=str, metavar=metavar)


def texts(metavar: str) -> OptionForm:
    """Return the form of a list of texts, by repeating the flag; its option needs a factory."""
    return OptionForm(kind=list[str], parse=lambda _, given: tuple(given or ()), metavar=metavar)
