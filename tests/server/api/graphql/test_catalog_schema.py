"""How columns are read from an image."""

from __future__ import annotations

import pytest

from tailrace_server.api.graphql.catalog_schema import row_of
from tailrace_server.api.graphql.errors import ValueUnfit


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"[]", "no JSON object"),
        (b'{"x":%b%b}' % (b"[" * 100_000, b"]" * 100_000), "nested too deep"),
    ],
)
def test_an_image_that_cannot_be_read_is_the_error_of_its_row(image: bytes, reason: str) -> None:
    """How deep the parser goes depends on its caller, so the log may have taken what a face cannot read."""
    with pytest.raises(ValueUnfit, match=reason):
        row_of(image)
