"""The leftover checks, on tests that leave something behind."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

HEAD = """
import asyncio, os, threading
import pytest
pytest_plugins = ["tests.support.fix_leftovers"]
"""


@pytest.fixture
def rules(
    pytester: pytest.Pytester, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Return an empty project that our fixtures can be imported in."""
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
    pytester.makeini(INI)
    return pytester


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "async def test_it():\n    global kept\n"
            "    kept = asyncio.get_running_loop().create_task(asyncio.Event().wait())\n",
            "*tasks left behind: *Event.wait*",
        ),
        (
            "def test_it():\n    threading.Thread(target=threading.Event().wait, name='idler',"
            " daemon=True).start()\n",
            "*threads left behind: idler*",
        ),
        (
            "def test_it(tmp_path):\n    os.open(tmp_path / 'kept', os.O_CREAT | os.O_RDWR)\n",
            "*files left open: kept*",
        ),
    ],
    ids=["task", "thread", "file"],
)
@pytest.mark.slow
def test_what_a_test_leaves_behind_fails_it(
    rules: pytest.Pytester, body: str, complaint: str
) -> None:
    rules.makepyfile(HEAD + body)
    result = rules.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([complaint])


@pytest.mark.slow
def test_what_a_fixture_ends_is_not_left_behind(rules: pytest.Pytester) -> None:
    rules.makepyfile(
        HEAD
        + """
@pytest.fixture
async def ticker(tmp_path):
    file = os.open(tmp_path / "kept", os.O_CREAT | os.O_RDWR)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(stopping.wait())
        yield
        stopping.set()
    os.close(file)

async def test_it(ticker):
    await asyncio.to_thread(str)
"""
    )
    rules.runpytest_subprocess().assert_outcomes(passed=1)
