"""Bounds that contradict each other. Real reads: tests/process/test_watch.py; starts: test_options.py."""

from __future__ import annotations

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.cli.changes import changes
from tests.server.cli.command_line import call


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"until": "3", "to_time": "1h"}, "^--until and --to-time both set where to end"),
        ({"last": "1h", "since": "3"}, "^--last and --since both set where to begin"),
        ({"last": "soon"}, "^--last 'soon': "),
        ({"last": "15"}, "^--last '15' has no unit; write 15m for minutes"),
        ({"wait_s": "a while"}, "^--wait 'a while': write a length of time as 10, 10s, 500ms"),
        ({"before": "x"}, "^not a cursor: 'x'"),
    ],
)
def test_bounds_without_meaning_are_refused_before_any_server_is_asked(
    bounds: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        call(changes, catalog="shop", server="127.0.0.1:1", **bounds)
