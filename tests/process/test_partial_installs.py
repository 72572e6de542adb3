"""``pip install tailrace`` and ``tailrace[server]``: what a command says that needs more than is there."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace_server.extras import EXTRAS, remedy
from tests.process.commands import outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in {packages}:
            raise ModuleNotFoundError("No module named %r" % fullname, name=fullname)

sys.meta_path.insert(0, Missing())
from tailrace_server.cli import main
main()
"""
SPARK = EXTRAS["spark"]
# The client's own dependencies have the namespace `google`, of which the extra brings another part.
SERVER = (*(each for each in EXTRAS["server"] if each != "google"), *SPARK)


def without(packages: Iterable[str]) -> tuple[str, ...]:
    """Return how Python runs ``tailrace`` where some packages are not installed."""
    return "-c", WITHOUT.replace("{packages}", json.dumps(list(packages)))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--help",), ("watch", "shop"), ("ingest", "--help")])
async def test_the_client_alone_says_what_the_command_needs(arguments: tuple[str, ...]) -> None:
    status, out, err = await outcome(*arguments, python=without(SERVER))
    assert (status, out) == (2, "")
    assert err == (
        "error: this command needs more than the client, and the Python package typer is not installed: "
        "pip install 'tailrace[server]'"
    )


UNLISTED = """
import asyncio
from importlib.metadata import MetadataPathFinder

MetadataPathFinder.find_distributions = lambda *_: ()
import tailrace

async def main():
    async with tailrace.connect("127.0.0.1:1"):
        print("entered")

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_client_that_was_copied_and_not_installed_connects() -> None:
    """As in a program that is packed with what it needs: there is no record of the package."""
    assert await outcome(python=("-c", UNLISTED)) == (0, "entered\n", "")


@pytest.mark.slow
async def test_an_ingest_without_spark_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed" / "lines.json").write_text("null\n")
    places = ("--input", tmp_path / "feed", "--log", tmp_path / "log", "--catalog", "shop")
    status, out, err = await outcome("ingest", "debezium", *places, python=without(SPARK))
    assert (status, out) == (2, "")
    assert err == (
        "error: this command needs Spark, and the Python package py4j is not installed: "
        "pip install 'tailrace[spark]'"
    )


@pytest.mark.slow
async def test_what_needs_no_spark_runs_without() -> None:
    for arguments in (("ingest", "debezium", "--help"), ("catalog", "list", "--help")):
        status, _, err = await outcome(*arguments, python=without(SPARK))
        assert (status, err) == (0, "")


@pytest.mark.slow
def test_the_extras_are_what_the_project_declares_and_what_the_server_imports() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    distributions: dict[str, set[str]] = {}
    for package, names in packages_distributions().items():
        for name in names:
            distributions.setdefault(_plain(name), set()).add(package)
    brought = {
        extra: {
            package
            for name in map(_plain, declared["optional-dependencies"][extra])
            if name != "tailrace"
            for package in distributions[name]
        }
        for extra in EXTRAS
    }
    assert all(packages <= set(EXTRAS[extra]) for extra, packages in brought.items())
    sources = (ROOT / "server").rglob("*.py")
    imported = {package for source in sources for package in _imports(source)}
    ours = {"tailrace", "tailrace_server", "grpc", *sys.stdlib_module_names}
    every = {package for packages in EXTRAS.values() for package in packages}
    assert every == set().union(*brought.values()) | (imported - ours)


def test_an_import_that_failed_for_another_reason_stays_what_it_is() -> None:
    assert (
        remedy(ModuleNotFoundError("No module named 'tailrace_server.x'", name="tailrace_server.x"))
        is None
    )
    assert remedy(ModuleNotFoundError("no name")) is None
    assert remedy(ImportError("cannot import name 'x' from 'pyarrow'", name="pyarrow")) is None
    assert "tailrace[server]" in str(remedy(ModuleNotFoundError("x", name="pyarrow.ipc")))


def _imports(source: Path) -> Iterator[str]:
    """Yield the packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (each.name.partition(".")[0] for each in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def _plain(requirement: str) -> str:
    """Return the name of a requirement, as names are compared."""
    name = requirement.split(">")[0].split("<")[0].split("[")[0].split("=")[0].strip()
    return name.lower().replace("_", "-")
