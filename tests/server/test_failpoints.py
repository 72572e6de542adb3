"""Places that tests arm, here and in a process. Spark is killed in tests/process/ingest/test_kills.py."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from tailrace_server.failpoints import armed, reach
from tests.support import failpoints

REACH = "from tailrace_server.failpoints import reach; reach('a'); reach('b')"


def test_a_place_acts_only_while_it_is_armed_and_the_time_that_was_named() -> None:
    reach("place")
    failpoints.arm("place=enospc@2, other=error")
    try:
        reach("place")
        reach("unknown")
        with pytest.raises(OSError, match="failpoint place") as caught:
            reach("place")
        assert caught.value.errno == errno.ENOSPC
        reach("place")
    finally:
        failpoints.arm("")
    assert not armed
    reach("other")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "status"), [("", 0), ("c=kill", 0), ("b=kill", -9)])
def test_a_process_is_armed_by_its_environment(text: str, status: int) -> None:
    process = subprocess.run(
        [sys.executable, "-c", REACH], env=failpoints.environment(text), timeout=60
    )
    assert process.returncode == status
