"""Errors of the operating system become errors of the log that say what to do."""

from __future__ import annotations

import errno
import os

import pytest

from tailrace.errors import LogError, LogFull, LogUnreadable
from tailrace_server.wal.files.system_errors import is_full, is_scarce, os_errors


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, LogFull), (errno.EACCES, LogUnreadable), (errno.EIO, LogError)],
)
def test_the_number_decides_the_class_and_the_text_says_what_failed(
    number: int, kind: type[LogError]
) -> None:
    text = os.strerror(number)
    with (
        pytest.raises(LogError, match=f"cannot write x: {text}") as raised,
        os_errors("cannot write x"),
    ):
        raise OSError(number, text)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EROFS, "mounted read-only: mount it for writing, or work on a copy"),
        (errno.EPERM, "give user .* permission"),
    ],
)
def test_what_may_not_be_written_says_what_to_do(number: int, cure: str) -> None:
    with pytest.raises(LogUnreadable, match=cure), os_errors("cannot write x"):
        raise OSError(number, os.strerror(number))


def test_a_process_without_descriptors_is_told_from_a_fault() -> None:
    with pytest.raises(LogError) as raised, os_errors("cannot read x"):
        raise OSError(errno.EMFILE, "too many")
    assert is_scarce(raised.value)
    assert not is_scarce(OSError(errno.EIO, "fault"))
    assert is_full(OSError(errno.EDQUOT, "quota"))
