"""The reason of a close. Messages, their order and closes on a real socket: rest/test_socket.py."""

from __future__ import annotations

import pytest

from tailrace_server.api.websocket.connection import close_reason


@pytest.mark.parametrize("text", ["short", "x" * 1_000, "é" * 100, "x" + "é" * 100, "顧" * 100])
def test_a_reason_fits_its_frame_and_no_character_is_torn(text: str) -> None:
    """A close frame has 125 bytes; two of them are the code."""
    reason = close_reason(text)
    assert text.startswith(reason)
    width = len(text[-1].encode())
    assert min(len(text.encode()), 124 - width) <= len(reason.encode()) <= 123
