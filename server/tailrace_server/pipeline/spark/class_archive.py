"""An archive of Spark's classes: a JVM maps it, and need not parse and check each class at every start.

Java writes it at the end of a run, with the classes that the run has loaded (a dynamic archive, JEP 350).
`prepare_spark` makes one; every session uses the one that it finds::

    <folder>/tailrace-spark-<key>.jsa      some 170 MB, in a folder of java.kept_folders

The key stands for one Java and one Spark. A JVM that the archive does not fit, as after an upgrade in place,
ignores it and starts as slowly as without one.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from shlex import quote
from typing import TYPE_CHECKING, Final

from tailrace_server.pipeline.spark.java import kept_folders

if TYPE_CHECKING:
    from pathlib import Path

_ERRORS_ALONE: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Without it a JVM warns of an unusable archive on its standard output, which is ours."""


def archive_name(java_home: Path) -> str:
    """Return the name of the archive for a runtime, given its JAVA_HOME, and the installed Spark."""
    key = hashlib.sha256(f"{java_home}\0{version('pyspark')}".encode()).hexdigest()[:16]
    return f"tailrace-spark-{key}.jsa"


def options_to_use(java_home: Path) -> str:
    """Return the JVM options that use the archive; an empty text if there is none."""
    for folder in kept_folders(os.environ):
        archive = folder / archive_name(java_home)
        if archive.is_file():
            return f"-XX:SharedArchiveFile={quote(str(archive))} {_ERRORS_ALONE}"
    return ""


def options_to_make(archive: Path) -> str:
    """Return the JVM options that write an archive when the JVM ends."""
    return f"-XX:ArchiveClassesAtExit={quote(str(archive))} {_ERRORS_ALONE}"
