"""What is refused by name is told once, and made-up names do not fill the log."""

from __future__ import annotations

from structlog.testing import capture_logs

from tailrace_server.api.websocket.sockets import RefusalLog


def test_a_name_is_told_once_with_its_cure() -> None:
    with capture_logs() as lines:
        log = RefusalLog("origin")
        for name in ("https://a.example", "https://b.example", "https://a.example"):
            log.tell(name, setting="ws_origins")
    assert [(line["origin"], line["setting"], line["log_level"]) for line in lines] == [
        ("https://a.example", "ws_origins", "warning"),
        ("https://b.example", "ws_origins", "warning"),
    ]


def test_made_up_names_end_in_one_line_that_says_so() -> None:
    with capture_logs() as lines:
        log = RefusalLog("host")
        for number in range(1_000):
            log.tell(f"{number}.example" * 100, setting="http_hosts")
    assert len(lines) == 102
    assert max(len(line.get("host", "")) for line in lines) == 200
    assert lines[-1]["event"] == "further refusals by host are counted only"
