"""Which line of what Spark says is told."""

from __future__ import annotations

from types import SimpleNamespace

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tailrace_server.pipeline.spark.session import reason_of


def thrown(*messages: str) -> Py4JError:
    """Return an error as the gateway makes one, with causes."""
    java = None
    for message in reversed(messages):
        java = SimpleNamespace(
            getMessage=lambda text=message: text, getCause=lambda cause=java: cause
        )
    error = Py4JError()
    error.java_exception = java
    return error


def test_of_an_error_in_a_task_it_is_what_python_said() -> None:
    """Java's own words end where the traceback begins."""
    said = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "sink.py", line 1, in write\n    raise\n'
        "tailrace.errors.LogFull: no room for segments/1/a.arrow\n"
    )
    assert reason_of(thrown(said)) == "LogFull: no room for segments/1/a.arrow"


def test_of_others_it_is_the_first_line_of_the_error_and_of_its_cause() -> None:
    assert reason_of(thrown("it failed\nat a.b", "failed because:\nof this", "no route")) == (
        "it failed (no route)"
    )
    assert reason_of(ValueError("plain\nand more")) == "plain"
