"""An issuer that is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.issuer import TokenIssuer, issuing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with issuing() as found:
        yield found
