"""``tailrace demo``: it succeeds, ends by itself, and leaves no process behind however it ends."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.process.commands import INTERRUPT, KILL, environment
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow

MARK = "DEMO_UNDER_TEST"
LONG_S = 110.0
"""Well under two minutes, as it is promised; it takes about 45 s on two cores."""


class Demo:
    """A demo whose descendants can be told from all other processes by a mark in their environment."""

    process: asyncio.subprocess.Process

    def __init__(self, *arguments: object) -> None:
        self._arguments = [str(each) for each in arguments]
        self._mark = f"{MARK}={uuid4()}"
        self.lines: list[str] = []

    async def __aenter__(self) -> Demo:
        name, _, value = self._mark.partition("=")
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace_server", "demo", *self._arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environment(), name: value},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.rest()
        await self.process.wait()

    async def line(self, part: str) -> str:
        """Return the first line that has a part, once it is there."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LONG_S):
            async for text in self.process.stdout:
                self.lines.append(text.decode().rstrip())
                if part in self.lines[-1]:
                    return self.lines[-1]
        pytest.fail(f"{part!r} never came: {self.lines}")

    async def rest(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(LONG_S):
            self.lines += (await self.process.stdout.read()).decode().splitlines()
        return "\n".join(self.lines)

    def descendants(self) -> list[str]:
        """Return the command lines of all processes that this demo brought about, itself included."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                        found.append(command.decode(errors="replace")[:120])
                except OSError:
                    continue
        return [each for each in found if each]

    async def none_left(self) -> None:
        await until(lambda: not self.descendants())


@pytest.fixture
async def started() -> AsyncIterator[Demo]:
    async with Demo() as demo:
        yield demo


def check_shares(text: str) -> None:
    """Everybody received exactly their share, and the slow one was overtaken."""
    assert sum(line.endswith("  exact") for line in text.splitlines()) == 8
    for way in ("over GraphQL", "over REST's WebSocket", "as server-sent events"):
        assert way in text
    assert "equals the source, transaction by transaction, byte for byte" in text
    came_back = re.search(r"was overtaken and came back (\d+) times and missed nothing", text)
    assert came_back is not None
    assert int(came_back[1]) >= 2


@pytest.mark.nightly(
    "tests/process/test_demo.py: the one that keeps its log differs only in its end, and the one with a"
    " database ends by itself"
)
async def test_it_ends_by_itself_and_everybody_received_exactly_their_share(
    started: Demo,
) -> None:
    text = await started.rest()
    assert await started.process.wait() == 0, text
    await started.none_left()
    check_shares(text)


async def test_the_demo_with_a_database_ends_with_the_rows_of_the_database() -> None:
    async with Demo("--postgres") as demo:
        text = await demo.rest()
        assert await demo.process.wait() == 0, text
        await demo.none_left()
    assert "rows of the database, after 40 live transactions" in text
    assert text.count("subscriber ") >= 40


async def test_everybody_received_their_share_and_a_log_that_is_kept_is_served_until_ctrl_c(
    tmp_path: Path,
) -> None:
    async with Demo("--keep", tmp_path, "--transactions", 1_200) as demo:
        await demo.line("until Ctrl-C")
        figures = await demo.line("/metrics")
        urls = re.findall(r"http://\S+", "\n".join(demo.lines))
        assert len(urls) == 6
        for url in urls:
            answer = await asyncio.to_thread(opened_in_a_browser, url)
            assert answer == 200, url
        demo.process.send_signal(INTERRUPT)
        text = await demo.rest()
        assert await demo.process.wait() == 0, text
        assert demo.descendants() == []
    assert figures in text
    check_shares(text)
    assert (tmp_path / "log" / "shop" / "catalog.json").exists()


def opened_in_a_browser(url: str) -> int:
    """Return the status of a page; nothing of an endless one is read."""
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"accept": accept})) as answer:
        status: int = answer.status
    return status


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(
            "its JVM takes",
            id="spark",
            marks=pytest.mark.nightly(
                "tests/process/test_demo.py: while subscribers read;"
                " tests/process/ingest/test_interrupt.py: while the JVM starts"
            ),
        ),
        pytest.param("slow │", id="subscribers"),
    ],
)
async def test_ctrl_c_at_any_moment_leaves_no_process_behind(started: Demo, moment: str) -> None:
    await started.line(moment)
    assert started.descendants()
    started.process.send_signal(INTERRUPT)
    text = await started.rest()
    assert await started.process.wait() == 130, text
    assert started.descendants() == []
    assert "Traceback" not in text


async def test_even_a_killed_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    """Nobody is left to clean up: the kernel ends the children, and the JVM ends with its driver."""
    async with Demo("--keep", tmp_path) as demo:
        await demo.line("slow │")
        demo.process.send_signal(KILL)
        await demo.process.wait()
        await demo.none_left()


async def test_input_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, reason in (
        (tmp_path / "missing", "no such folder"),
        (tmp_path / "empty", "no file"),
    ):
        async with Demo("--input", folder) as demo:
            text = await demo.rest()
            assert await demo.process.wait() == 2
        assert text.startswith(f"error: --input {folder}: {reason}")
        assert "\n" not in text
