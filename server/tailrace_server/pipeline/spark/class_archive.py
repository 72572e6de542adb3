"""An archive of Spark's classes: a JVM maps it instead of parsing and checking each class at every start.

Java writes one when a run ends, of the classes that the run has loaded (a dynamic archive, JEP 350).
``prepare.py`` makes it; every session uses the one that it finds::

    <folder>/tailrace-spark-<key>.jsa      some 170 MB, in a folder of java.kept_folders

The key stands for one Java and one Spark. A JVM that an archive does not fit, as after an upgrade in place,
goes without it and is as slow as before.
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
"""A JVM warns on its standard output, which is ours, of an archive that it cannot use."""


def archive_name(java_home: Path) -> str:
    """Return the file's name for a runtime, by its JAVA_HOME, and the Spark that is installed."""
    key = hashlib.sha256(f"{java_home}\0{version('pyspark')}".encode()).hexdigest()[:16]
    return f"tailrace-spark-{key}.jsa"


def options_to_use(java_home: Path) -> str:
    """Return the JVM options that use the archive; none where it was not made."""
    for folder in kept_folders(os.environ):
        archive = folder / archive_name(java_home)
        if archive.is_file():
            return f"-XX:SharedArchiveFile={quote(str(archive))} {_ERRORS_ALONE}"
    return ""


def options_to_make(archive: Path) -> str:
    """Return the JVM options that write an archive when the JVM ends."""
    return f"-XX:ArchiveClassesAtExit={quote(str(archive))} {_ERRORS_ALONE}"
