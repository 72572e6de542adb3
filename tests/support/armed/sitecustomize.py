"""Arms a process that a test has started, as ``tests/support/failpoints.py`` describes."""

import os

from tests.support import failpoints

failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
