"""The limit of file descriptors, of a real process."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import resource
from tailrace_server.descriptors import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 96))
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
raise_limit()
"""


def test_a_process_takes_as_many_as_it_may() -> None:
    command = [sys.executable, "-c", _CODE]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == "(96, 96)\n"
    )
