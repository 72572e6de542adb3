"""Errors of a demo."""

from __future__ import annotations

from tailrace.errors import TailraceError


class DemoFailed(TailraceError):
    """Something did not do what the demo shows; says what."""

    code = "DEMO_FAILED"
