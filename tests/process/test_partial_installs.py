"""``pip install tailrace`` and its extras: what runs with each, and what the other commands say."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace_server.cli import plain
from tailrace_server.cli.commands import COMMANDS
from tailrace_server.extras import EXTRAS, remedy
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import Command, ServerProcess, outcome
from tests.support.kafka_brokers import mock_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

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
READ = """
import json
from tailrace.log import read
where = read("{log}", "shop", "product", where="id = '2'", starting=2, columns=["_change_type"])
state = read("{log}", "shop", "product", shape="state", where="id > '1'", columns=["id"])
captures = read("{log}", "shop", shape="captures", columns=["index"])
found = [each.read_all().column(0).to_pylist() for each in (where, state, captures)]
print(json.dumps([*found[:2], [len(found[2])]]))
"""
SPARK = EXTRAS["spark"]
# The client's own dependencies have the namespace `google`, of which an extra brings another part.
SERVER = (*(each for each in EXTRAS["server"] if each != "google"), *SPARK)
LOG = (*EXTRAS["log"], *SERVER)
CLI = (*EXTRAS["cli"], *LOG)
"""Extra → what is not there where it is not installed, nor those after it."""


def without(packages: Iterable[str]) -> tuple[str, ...]:
    """Return how Python runs ``tailrace`` where some packages are not installed."""
    return "-c", WITHOUT.replace("{packages}", json.dumps(list(packages)))


@pytest.fixture
def log(log_root: Path) -> Path:
    with LogWriter.open(log_root, "shop") as writer:
        for key in ("1", "2"):
            writer.append([Mutation("product", key, after=b'{"id":"%b"}' % key.encode())])
    return log_root


@pytest.fixture
async def server(log: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(log)
    async with server.up():
        yield server


@pytest.mark.slow
async def test_the_client_alone_shows_changes_as_json(server: ServerProcess) -> None:
    address = ("--server", server.grpc)
    status, out, err = await outcome("changes", "shop", *address, python=without(CLI))
    assert (status, "printed 3" in err) == (0, True)
    assert [json.loads(line)["primaryKey"] for line in out.splitlines()] == [None, "1", "2"]
    options = ("--since", 0, "--key", 1, "--key", 2, "--body", "none")
    async with Command("watch", "shop", *address, *options, python=without(CLI)) as watch:
        assert [each["primaryKey"] for each in await watch.captures(2)] == ["1", "2"]
        watch.send(signal.SIGINT)
        assert await watch.end() == 130


@pytest.mark.slow
async def test_the_extra_of_the_command_line_shows_changes_to_a_person(
    server: ServerProcess,
) -> None:
    options = ("--server", server.grpc, "--key", 1)
    status, out, _ = await outcome("changes", "shop", *options, python=without(LOG))
    assert status == 0
    assert re.fullmatch(r' +1:\d  [0-9:.]+  insert    product   1     id "1"\n', out)


@pytest.mark.slow
async def test_the_extra_of_the_log_inspects_and_verifies_one(log: Path) -> None:
    for command, shown in (("inspect", "published"), ("verify", "sound")):
        status, out, err = await outcome("log", command, log / "shop", python=without(SERVER))
        assert (status, err) == (0, "")
        assert shown in out


@pytest.mark.slow
async def test_the_extra_of_the_log_reads_one(log: Path) -> None:
    program = WITHOUT.partition("from tailrace_server.cli")[0] + READ.replace("{log}", str(log))
    program = program.replace("{packages}", json.dumps(list(SERVER)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert (process.returncode, json.loads(out)) == (0, [["insert"], ["2"], [5]])


@pytest.mark.slow
async def test_topics_of_kafka_need_no_spark(tmp_path: Path) -> None:
    brokers = mock_cluster()
    brokers.send("shop.t", b'{"id":1}', b'{"id":2}')
    address = ("--bootstrap", brokers.servers, "--topic", "shop.t")
    status, _, err = await outcome(
        *("ingest", "kafka", *address, "--log", tmp_path, "--catalog", "shop"),
        python=without(SPARK),
    )
    assert (status, "none of 2 new lines in the topics of" in err) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "found"), [((), "True"), (CLI, "False"), (SERVER, "False")])
async def test_a_client_without_the_extra_leaves_the_other_sources_of_spark_alone(
    missing: tuple[str, ...], found: str
) -> None:
    program = WITHOUT.partition("from tailrace_server.cli")[0]
    program += "import pyspark_tailrace; print(hasattr(pyspark_tailrace, 'DefaultSource'))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program.replace("{packages}", json.dumps(list(missing)))),
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert (process.returncode, out.decode().strip()) == (0, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "arguments", "line"),
    [
        (
            CLI,
            ("catalog", "list"),
            "catalog needs more than the client: pip install 'tailrace[cli]'",
        ),
        (
            LOG,
            ("log", "verify", "x"),
            "log needs the packages that read a log: pip install 'tailrace[log]'",
        ),
        (
            SERVER,
            ("serve", "--help"),
            "serve needs the packages of the server: pip install 'tailrace[server]'",
        ),
        (SPARK, ("demo",), "demo needs Spark: pip install 'tailrace[spark]'"),
    ],
)
async def test_what_is_not_installed_says_so_in_one_line(
    missing: tuple[str, ...], arguments: tuple[str, ...], line: str
) -> None:
    status, out, err = await outcome(*arguments, python=without(missing))
    assert (status, out, err) == (2, "", f"error: tailrace {line}")


@pytest.mark.slow
@pytest.mark.parametrize("missing", [CLI, LOG])
async def test_the_help_tells_what_installs_the_other_commands(missing: tuple[str, ...]) -> None:
    status, out, err = await outcome("--help", python=without(missing))
    assert (status, err) == (0, "")
    others = out[out.lower().index("not installed") :]
    for name, command in COMMANDS.items():
        shown = command.extra is None or (command.extra == "cli" and missing is LOG)
        assert (re.search(rf"\b{name}\b", others) is None) == shown
    assert "pip install 'tailrace[server]'" in others


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("changes",),
            "the following arguments are required: CATALOG; see tailrace changes --help",
        ),
        (
            ("changes", "shop", "--limit", "0"),
            "argument --limit: '0' is not a whole number of at least 1; see",
        ),
        (("watch", "shop", "--sinc", "1"), "unrecognized arguments: --sinc 1; see tailrace --help"),
        (("watch", "shop", "--key"), "argument --key: expected one argument; see tailrace watch"),
        (("watching",), "argument COMMAND: invalid choice: 'watching' (choose from"),
    ],
)
def test_the_client_alone_names_what_is_wrong_in_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plain.run(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {line}")


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
    assert "tailrace[log]" in str(remedy(ModuleNotFoundError("x", name="pyarrow.ipc")))


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
