"""Fixtures of the client's tests."""

from __future__ import annotations

import random

import pytest

from tailrace.retry import Retry


@pytest.fixture
def quick_retry() -> Retry:
    """Return a retry that waits a few milliseconds."""
    return Retry(first_s=0.005, longest_s=0.02, random=random.Random(7))
