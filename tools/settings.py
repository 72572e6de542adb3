"""Write docs/settings.md from the code: every setting of the project with name, unit, default and reason.

``python -m tools.settings`` rewrites the page; ``--check`` only compares. A setting is a dataclass field
that carries its unit and reason in its metadata, or a public number with a docstring and a unit in its
name; they are found by looking through the packages, so that none has to be listed here to be on the page.
A public number whose name is that of a bound must be on the page: it is an error if it lacks a reason, a
unit or a section. Numbers with private names are their module's own.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tailrace_server.cli.application import application
from tailrace_server.cli.export import export_app
from tailrace_server.cli.ingest.app import ingest_app
from tailrace_server.settings import GROUPS, SECTIONS, ServerSettings, described
from tailrace_server.units import format_bytes, format_seconds
from tools.pages import renew

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"

HEAD = """\
# Settings

`make docs` makes this page from the code. Amounts of bytes may have a unit (`64KiB`, `512MiB`,
`1.5GiB`), and so may lengths of time (`500ms`, `10s`, `2m`, `1h`). In brackets is the default, or the
form of a value without one.

## The server: `tailrace serve`

A setting may be in three places, and the later one wins: the TOML file that `--config` or
`TAILRACE_CONFIG` names, the environment, the flags. For `--ring-captures` the key in the file is
`ring_captures`, and the variable `TAILRACE_RING_CAPTURES`. `tailrace serve --print-config` prints the
effective values and the source of each, as such a file. Unknown flags and keys, and values that cannot
be used, are errors. Unknown variables are ignored, since orchestrators set some.
"""


COMMANDS = (
    ("The pipeline", ingest_app, "ingest debezium"),
    ("Change streams in", ingest_app, "ingest cdcv2"),
    ("Change streams out", export_app, "export cdcv2"),
    ("Delta tables", export_app, "export delta"),
)
"""Heading, application and name of the commands whose options are listed."""

ELSEWHERE = (
    (
        "The Python client",
        (
            "tailrace.retry",
            "tailrace.client",
            "tailrace.subscription",
            "tailrace.link",
            "tailrace.transport.grpc",
        ),
    ),
    ("The log", ("tailrace_server.wal",)),
    ("Bounds inside the pipeline", ("tailrace_server.pipeline",)),
    (
        "Bounds inside the server",
        (
            *(
                f"tailrace_server.{room}"
                for room in ("resources", "rows", "grants", "codecs", "log_cache")
            ),
            *(
                f"tailrace_server.{room}"
                for room in ("reads", "live", "catalogs", "named", "engine", "api", "process")
            ),
        ),
    ),
    (
        "Bounds of change streams",
        ("tailrace.cdcv2", "tailrace_server.cdcv2", "tailrace_server.export"),
    ),
)
"""Section → modules and packages whose public bounds it lists."""

APART = (
    "tailrace.v1",
    "tailrace_server.codecs.fields",
    "tailrace_server.demo",
    "tailrace_server.sample_shop",
)
"""Modules whose numbers are no settings: tags of the wire, and the demo's own."""

UNITS = {
    "s": "seconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "share": "one in",
    "depth": "levels",
    "demand": "captures",
    **{
        word: word
        for word in (
            "arenas",
            "attempts",
            "batches",
            "buffers",
            "bytes",
            "captures",
            "characters",
            "entries",
            "files",
            "ids",
            "intervals",
            "keys",
            "records",
            "rows",
            "segments",
            "shares",
            "updates",
            "values",
        )
    },
}
"""The word that a name ends in, and the unit that it stands for."""

_LARGEST = 1 << 62
"""From here on a number is the end of what a type can hold, and no bound."""

COMMAND_VARIABLES = """
## Variables of the commands

A flag wins over its variable. `TAILRACE_TRACEBACK=1` prints the traceback of an error, `NO_COLOR` and
`FORCE_COLOR` switch colours, and an ingest prefers the Java of `JAVA_HOME`.

| Variable | Flag | Of | Default | Why |
|---|---|---|---|---|
"""


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is not what the code says."""
    renew(PAGE, render(), arguments)


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, settings in SECTIONS.items():
        parts.append(f"\n### {title[0].upper()}{title[1:]}\n\n")
        parts.extend(
            _item(each.flag, each.unit, each.format(each.default), each.reason) for each in settings
        )
    for title, app, name in COMMANDS:
        parts.append(f"\n## {title}: `tailrace {name}`\n\n")
        parts.extend(_options(app, name.rpartition(" ")[2]))
    parts.append(COMMAND_VARIABLES)
    parts.extend(_variables())
    listed: set[str] = set()
    for title, places in ELSEWHERE:
        rows = sorted({row for place in places for row in _bounds(place)})
        listed.update(row[0] for row in rows)
        if rows:
            parts.append(f"\n## {title}\n\n")
            parts.extend(
                _item(name, unit, default, _first(reason)) for name, unit, default, reason in rows
            )
    if left_out := sorted(set(_must_be_listed()) - listed):
        raise SystemExit(
            "these numbers have the names of bounds and would not be on the page; give each a docstring and a "
            f"unit as the last word of its name, and its module a section: {', '.join(left_out)}"
        )
    return "".join(parts)


def _variables() -> Iterator[str]:
    """Yield a row for each variable that stands for a flag of a command, those of the server left out."""
    root: Any = typer.main.get_command(application())
    groups = {
        name: set(each.commands)
        for name, each in root.commands.items()
        if hasattr(each, "commands")
    }
    rows: dict[tuple[str, ...], list[str]] = {}
    for names, option in _every_option(root, ()):
        for variable in [option.envvar] if isinstance(option.envvar, str) else option.envvar or ():
            default = "" if option.required or option.default in (None, ...) else option.default
            row = variable, option.opts[0], str(default), option.help
            rows.setdefault(row, []).append(" ".join(names))
    for (variable, flag, default, reason), commands in sorted(rows.items()):
        of = ", ".join(f"`{each}`" for each in _joined(commands, groups))
        yield f"| `{variable}` | `{flag}` | {of} | {_code(default)} "
        yield f"| {_sentence(reason)} |\n"


def _joined(commands: list[str], groups: dict[str, set[str]]) -> list[str]:
    """Return commands by name; one name for a group of which all commands are there."""
    found = set(commands)
    for group, names in groups.items():
        every = {f"{group} {name}" for name in names}
        if every <= found:
            found = found - every | {f"{group} …"}
    return sorted(found)


def _every_option(command: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names of each command with each of its options."""
    for option in command.params:
        if option.param_type_name == "option":
            yield names, option
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from _every_option(each, (*names, name))


def _options(app: typer.Typer, name: str) -> Iterator[str]:
    """Yield a row for each option of a command."""
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    for option in command.params:
        if option.help and "completion" not in option.name:
            default = "" if option.default in (None, ...) or option.required else option.default
            shown = (
                "off" if default is False else f"{default:,}" if type(default) is int else default
            )
            form = option.metavar or ("flag" if option.is_flag else "number")
            names = "/".join((*option.opts, *option.secondary_opts))
            yield _item(names, form, str(shown), option.help)


def _bounds(place: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, unit, default, reason) of the settings below a package, those of the server left out."""
    server = (ServerSettings, *(cls for _, cls in GROUPS.values()))
    for name in _modules(place):
        module = importlib.import_module(name)
        source = ast.parse(inspect.getsource(module))
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == name and cls not in server:
                yield from _fields(cls)
        yield from _constants(module, source)


def _modules(place: str) -> Iterator[str]:
    if importlib.util.find_spec(place) is None:
        return
    yield place
    path = getattr(importlib.import_module(place), "__path__", None)
    for each in pkgutil.walk_packages(path, f"{place}.") if path else ():
        yield each.name


def _must_be_listed() -> Iterator[str]:
    """Yield the public numbers of all modules whose names are those of bounds, as they stand on the page."""
    for name in (each for place in ("tailrace", "tailrace_server") for each in _modules(place)):
        if name.startswith(APART) or name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        for constant in _assigned(ast.parse(inspect.getsource(module)).body):
            value: Any = getattr(module, constant, None)
            if _is_number(value) and value < _LARGEST and _names_a_bound(constant):
                yield _name_of(module, constant)


def _names_a_bound(constant: str) -> bool:
    """Return whether a public name ends in an extreme, or in a unit with something before it."""
    if constant.startswith("_") or "_" not in constant:
        return False
    return constant.endswith(("_MAX", "_MIN")) or bool(_unit(constant))


def _fields(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield the fields that carry their unit and reason, or, in a class of patience, a docstring and a unit."""
    if not dataclasses.is_dataclass(cls):
        return
    for each in described(cls):
        name = f"{cls.__name__}.{each.field}"
        yield name, each.unit, each.format(each.default), each.reason
    if cls.__name__ not in ("Retry", "Timeouts"):
        return
    body = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    for name, reason in _documented(body.body):
        default = defaults.get(name)
        if isinstance(default, int | float):
            yield f"{cls.__name__}.{name}", _unit(name), _number(name, default), reason


def _constants(module: Any, source: ast.Module) -> Iterator[tuple[str, str, str, str]]:
    """Yield the module's public numbers that have a docstring and a unit in their name."""
    for name, reason in _documented(source.body):
        value: Any = getattr(module, name, None)
        if _is_number(value) and not name.startswith("_") and (unit := _unit(name)):
            yield _name_of(module, name), unit, _number(name, value), reason


def _name_of(module: Any, constant: str) -> str:
    return f"{module.__name__.removeprefix('tailrace_server.')}.{constant}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that are assigned to, annotated or not."""
    for statement in body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of the assignments that are followed by a docstring."""
    for statement, following in itertools.pairwise(body):
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                for name in _assigned([statement]):
                    yield name, " ".join(text.split())


def _unit(name: str) -> str:
    """Return the unit of the last word of a name, but for what says that it is a bound, or of what."""
    plain = re.sub(r"_(max|min|at_once|per_[a-z]+)$", "", name.lower())
    return UNITS.get(plain.rpartition("_")[2], "")


def _number(name: str, value: float) -> str:
    match _unit(name):
        case "bytes":
            return format_bytes(int(value))
        case "seconds":
            return format_seconds(value)
        case _:
            return f"{value}"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _item(name: str, unit: str, default: str, reason: str) -> str:
    """Return a line of a list; the unit if there is no default, or a plain number."""
    shown = unit if not default or default.replace(",", "").isdigit() else ""
    said = " ".join(each for each in (_code(default), shown) if each)
    return f"- `{name}`{f' ({said})' if said else ''}: {_sentence(reason)}\n"


def _first(reason: str) -> str:
    """Return the first sentence of a docstring; the code has the rest."""
    return re.split(r"(?<=\.) (?=[A-Z])", reason)[0]


def _sentence(reason: str) -> str:
    first = reason[0] if reason.startswith("gRPC") else reason[0].upper()
    text = f"{first}{reason[1:]}".replace("|", "\\|")
    return text if text.endswith((".", "…")) else f"{text}."


if __name__ == "__main__":
    main(sys.argv[1:])
