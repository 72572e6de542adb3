"""docs/errors.md says what the code does, and every error says what to do."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace_server.api.errors import GRPC_STATUS
from tailrace_server.api.graphql import errors
from tailrace_server.api.websocket.messages import BECAUSE, CloseCode
from tools.errors import PAGE, main


def test_the_page_is_made_of_the_code() -> None:
    main(["--check"])


def test_every_code_of_a_value_that_is_null_is_on_the_page() -> None:
    """Those that the GraphQL face writes are those of its table."""
    folder = Path(errors.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    written = set(re.findall(r'"((?:VALUE|BODIES)_[A-Z]+)"', text))
    assert written == set(errors.VALUE_CODES)
    assert all(f"`{code}`" in PAGE.read_text() for code in written)


def test_every_error_and_every_close_code_says_what_to_do() -> None:
    assert set(BECAUSE) == set(CloseCode)
    for error in GRPC_STATUS:
        assert "advice" in vars(error), error
        assert error.advice.endswith(".")
