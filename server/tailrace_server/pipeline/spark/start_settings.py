"""The place where Spark runs, and the settings of a session that we start: the operator's, then ours.

The operator states settings in five places: the variables of `_OF_VARIABLE`, ``spark-defaults.conf``, the
variable ``PYSPARK_SUBMIT_ARGS``, the arguments of `SparkOptions`, and ``--conf``; a later place wins. We add a
setting only if no place states it.

Source: Spark's page Configuration, "Loading Default Configurations"; SparkSubmitArguments.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import RUNNING, option, text, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of a command that starts Spark."""

    master: str | None = option(
        "--master",
        "URL of the Spark master. Default: that of spark-defaults.conf, or else local[*].",
        text("URL"),
        None,
        panel=RUNNING,
    )
    conf: tuple[str, ...] = option(
        "--conf",
        "A setting of Spark; repeat for more.",
        texts("KEY=VALUE"),
        factory=tuple,
        panel=RUNNING,
    )
    submit_args: str | None = option(
        "--spark-submit-args",
        "Further arguments of spark-submit, as one text.",
        text("ARGS"),
        None,
        panel=RUNNING,
    )

    def settings(self) -> dict[str, str]:
        """Return the settings in `conf`.

        Raises:
            InvalidRequest: One of them is not of the form KEY=VALUE.
        """
        found = {}
        for each in self.conf:
            name, equals, value = each.partition("=")
            if not equals or not name.strip():
                raise InvalidRequest(f"--conf {each!r}: write a setting of Spark as KEY=VALUE")
            found[name.strip()] = value
        return found


_OF_VARIABLE: Final = {"MASTER": "spark.master", "SPARK_DRIVER_MEMORY": "spark.driver.memory"}
"""Environment variables that spark-submit takes as a setting which we would add."""
_OF_FLAG: Final = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
"""Arguments of spark-submit that state a setting which we would add."""


def is_local(master: str | None) -> bool:
    """Return True if Spark runs in this process's own JVM; None is Spark's default, ``local[*]``."""
    return master is None or master.startswith("local")


def stated_settings(submit_args: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the operator states, for a JVM that we start.

    Args:
        submit_args: Arguments of spark-submit, as one text.
        conf: Settings that have precedence.

    Raises:
        InvalidRequest: The arguments have an unclosed quote.
    """
    try:
        words = shlex.split(f"{os.environ.get('PYSPARK_SUBMIT_ARGS', '')} {submit_args}")
    except ValueError as error:
        raise InvalidRequest(f"arguments of spark-submit {submit_args!r}: {error}") from None
    given = _of_arguments(words)
    file = given.pop("--properties-file", None)
    variables = {key: os.environ[name] for name, key in _OF_VARIABLE.items() if name in os.environ}
    in_file = _of_file(_defaults_file() if file is None else Path(file))
    return {**variables, **in_file, **given, **conf}


def _of_arguments(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, value in _pairs(words):
        if word in ("--conf", "-c"):
            name, _, setting = value.partition("=")
            found[name] = setting
        elif word in _OF_FLAG:
            found[_OF_FLAG[word]] = value
        elif word == "--properties-file":
            found[word] = value
    return found


def _pairs(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield each word with its value: the rest after ``=``, or the next word."""
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            yield flag, value
        elif place + 1 < len(words):
            yield word, words[place + 1]


def _defaults_file() -> Path:
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder is None:
        from pyspark.find_spark_home import _find_spark_home

        folder = os.path.join(_find_spark_home(), "conf")
    return Path(folder, "spark-defaults.conf")


def _of_file(path: Path) -> dict[str, str]:
    """Return the settings in a file of properties: a name, a space or ``=``, and the value in each line."""
    found = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        if (stripped := line.strip()) and stripped[0] not in "#!":
            ends = [stripped.find(each) for each in "= \t:" if each in stripped]
            end = min(ends, default=len(stripped))
            found[stripped[:end]] = stripped[end:].lstrip(" \t=:")
    return found
