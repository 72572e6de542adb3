"""docs/errors.md says what the code does, and every error says what to do."""

from __future__ import annotations

from tailrace_server.api.errors import GRPC_STATUS
from tailrace_server.api.websocket.codes import BECAUSE, CloseCode
from tools.errors import main


def test_the_page_is_made_of_the_code() -> None:
    main(["--check"])


def test_every_error_and_every_close_code_says_what_to_do() -> None:
    assert set(BECAUSE) == set(CloseCode)
    for error in GRPC_STATUS:
        assert "advice" in vars(error), error
        assert error.advice.endswith(".")
