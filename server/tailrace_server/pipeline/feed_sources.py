"""The file of ``tailrace ingest sources``: the sources of a catalog, each with the options of its command.

::

    [[source]]
    kind = "postgres"
    dsn = "postgresql://reader@db/shop"
    slot = "tailrace_shop"

    [[source]]
    kind = "python"
    function = "shop.feed:changes"
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.option_fields import options_of, values_of
from tailrace_server.pipeline.feed.postgres.options import PostgresOptions
from tailrace_server.pipeline.feed.settings import PythonOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace_server.pipeline.feed.settings import FeedSettings
    from tailrace_server.pipeline.feed.source import TransactionSource
    from tailrace_server.pipeline.run.progress import ProgressReporter

SourceOptions = PostgresOptions | PythonOptions
_KINDS: Final[dict[str, type]] = {"postgres": PostgresOptions, "python": PythonOptions}
_TYPES: Final = {str: "a text", bool: "true or false", list[str]: "a list of texts"}


def sources_of(
    options: Sequence[SourceOptions],
    settings: FeedSettings,
    reporter: ProgressReporter,
    resnapshot: Collection[str] = (),
) -> list[TransactionSource]:
    """Return sources; nothing is connected yet.

    Args:
        options: The options of each source.
        settings: The options of the run.
        reporter: Prints notes and warnings.
        resnapshot: Names of sources whose tables are read again.

    Raises:
        InvalidRequest: An option is malformed, or there is no such source to read again.
    """
    found = [_source(each, settings, reporter) for each in options]
    names = [each.name for each in found]
    for name in resnapshot:
        if name not in names:
            raise InvalidRequest(f"--resnapshot {name!r}{nearest(name, names)}")
        place = names.index(name)
        given = options[place]
        if not isinstance(given, PostgresOptions):
            raise InvalidRequest(f"--resnapshot {name}: it is no PostgreSQL source")
        found[place] = _source(replace(given, resnapshot=True), settings, reporter)
    return found


def _source(
    options: SourceOptions, settings: FeedSettings, reporter: ProgressReporter
) -> TransactionSource:
    if isinstance(options, PythonOptions):
        from tailrace_server.pipeline.feed.python_source import PythonSource

        return PythonSource.load(options.function, options.name)
    from tailrace_server.pipeline.feed.postgres.source import PostgresSource

    return PostgresSource(
        options,
        *(settings.log, settings.catalog),
        follow=settings.follow,
        note=reporter.note,
        warn=reporter.complain,
    )


def read_sources(file: str) -> list[SourceOptions]:
    """Return the options of each source, in the order of the file.

    Args:
        file: The TOML file.

    Raises:
        InvalidRequest: The file cannot be read, or an option is unknown, missing or malformed.
    """
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{file}: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file}: it is not TOML: {error}") from error
    for name in document.keys() - {"source"}:
        raise InvalidRequest(f"{file}: there is no {name!r}{nearest(name, ['source'])}")
    tables = document.get("source")
    if not (isinstance(tables, list) and tables and all(isinstance(x, dict) for x in tables)):
        raise InvalidRequest(f"{file}: write [[source]] and its options, for each source")
    return [_read(f"{file}: source {number}", x) for number, x in enumerate(tables, 1)]


def _read(place: str, table: Mapping[str, Any]) -> Any:
    kind = str(table.get("kind", ""))
    if kind not in _KINDS:
        raise InvalidRequest(f"{place}: kind = {kind!r}{nearest(kind, _KINDS)}")
    options = options_of(_KINDS[kind])
    # An option has the name of its flag. What concerns one run, such as --resnapshot, is no part of the file.
    names = {
        each.flag.removeprefix("--") or field: field
        for field, each in options.items()
        if each.panel is None
    }
    given = {field: each.default for field, each in options.items()}
    for name, value in table.items():
        if name == "kind":
            continue
        if name not in names:
            raise InvalidRequest(f"{place} ({kind}): unknown option {name!r}{nearest(name, names)}")
        expected = options[names[name]].form.kind
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (is_list if expected == list[str] else type(value) is expected):
            raise InvalidRequest(f"{place} ({kind}): {name} = {value!r}: write {_TYPES[expected]}")
        given[names[name]] = value
    for name, field in names.items():
        if given[field] is MISSING:
            raise InvalidRequest(f"{place} ({kind}): {name} is missing")
    return _KINDS[kind](**values_of(_KINDS[kind], given))


__all__ = ["SourceOptions", "read_sources", "sources_of"]
