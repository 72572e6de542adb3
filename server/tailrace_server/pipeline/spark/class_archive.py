"""An archive of Spark's classes: a JVM maps it, and need not parse and check each class at every start.

Java writes it at the end of a run, with the classes that the run has loaded (a dynamic archive, JEP 350).
`prepare_spark` makes one; every session uses the one that it finds::

    <folder>/tailrace-spark-<key>.jsa      some 170 MB, in a folder of java.kept_folders

The key identifies one Java and one Spark. A JVM that the archive does not fit, as after an upgrade in place,
ignores it and starts as slowly as without one. If there is none, the first ingest at a terminal says that it
can be made; an empty file ``….jsa.offered`` keeps later ones from saying so again.
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


def can_be_made(java_home: Path) -> bool:
    """Return whether a Java can write one: it needs an archive of its own classes to build on."""
    return (java_home / "lib" / "server" / "classes.jsa").exists()


def is_to_be_offered(java_home: Path) -> bool:
    """Return whether to tell somebody that an archive can be made. Says so once for a Java and a Spark."""
    if options_to_use(java_home) or not can_be_made(java_home):
        return False
    for folder in kept_folders(os.environ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{archive_name(java_home)}.offered").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            continue  # where nothing can be kept, no archive can
        return True
    return False


def options_to_make(archive: Path) -> str:
    """Return the JVM options that write an archive when the JVM ends."""
    return f"-XX:ArchiveClassesAtExit={quote(str(archive))} {_ERRORS_ALONE}"
