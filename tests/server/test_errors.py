"""Errors of the process. That foreign ones are our bug: api/test_errors.py."""

from __future__ import annotations

import pytest

from tailrace.errors import TailraceError
from tailrace_server.errors import CannotStart, ConfigError, again
from tests.server.api.test_errors import SAMPLES


@pytest.mark.parametrize(
    "error", [*SAMPLES, ConfigError("no such key")], ids=lambda error: type(error).__name__
)
def test_a_copy_says_the_same_and_keeps_none_of_the_frames(error: TailraceError) -> None:
    cause = OSError("disk")
    with pytest.raises(TailraceError) as caught:
        raise error from cause
    copied = again(caught.value)
    assert error.__traceback__ is not None
    assert copied is not error
    assert copied.__traceback__ is None
    assert copied.__cause__ is cause
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))


def test_a_configuration_error_is_one_that_keeps_the_process_from_starting() -> None:
    assert issubclass(ConfigError, CannotStart)
    assert (CannotStart.code, ConfigError.code) == ("CANNOT_START", "CONFIG")
