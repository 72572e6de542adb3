"""Errors of the process. That foreign ones are our bug: api/test_errors.py."""

from __future__ import annotations

from tailrace_server.errors import CannotStart, ConfigError


def test_a_configuration_error_is_one_that_keeps_the_process_from_starting() -> None:
    assert issubclass(ConfigError, CannotStart)
    assert (CannotStart.code, ConfigError.code) == ("CANNOT_START", "CONFIG")
