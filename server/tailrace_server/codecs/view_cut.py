"""Captures with the columns alone that views show, under the names that each version has for them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.codecs.cdcv2 import CDCV2
from tailrace_server.codecs.column_cut import cut_by_schema, cut_codec
from tailrace_server.codecs.columns import Codec
from tailrace_server.grants.shown_views import ViewedRows, viewed

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace_server.codecs.columns import CaptureColumns, EncodedMessages
    from tailrace_server.grants.narrowing import Narrowed
    from tailrace_server.grants.shown_views import ShownView

_CODECS_MAX: Final = 256


class ViewCodec(Codec):
    """The wire form of another codec, of what views show."""

    def __init__(self, inner: Codec, views: tuple[ShownView, ...]) -> None:
        """Write captures as ``inner`` does."""
        self._shown = viewed(None, views)
        self.name = f"{inner.name}, views {self._shown.cut_identity.hex()}"
        self._inner = inner

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return what the other codec makes of what is shown."""
        return self._inner.encode(cut_by_schema(columns, self._shown.columns_in))

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the same in messages."""
        return self._inner.messages(cut_by_schema(columns, self._shown.columns_in), message_bytes)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return what the other codec does."""
        return self._inner.with_omitted(header_frame, omitted_bytes)


def codec_of(codec: Codec, narrowed: Narrowed) -> Codec:
    """Return the codec that writes the visible part of captures in a wire form.

    Raises:
        NotPermitted: CDCv2, which identifies a row by all of its bytes: without a column two rows may be one.
        InvalidRequest: CDCv2 of a view that has only some columns.
    """
    if isinstance(narrowed.shown, ViewedRows):
        return view_codec(codec, narrowed.shown)
    if codec is CDCV2 and narrowed.shown is not None:
        raise NotPermitted("CDCV2 has whole rows, and not every column and image is granted")
    return cut_codec(codec, narrowed.shown)


def view_codec(codec: Codec, shown: ViewedRows) -> Codec:
    """Return a codec for what views show of what is granted: the same one for equal arguments.

    Raises:
        NotPermitted: CDCv2, which identifies a row by all of its bytes, if the row is granted in part.
        InvalidRequest: CDCv2 of a view that has some columns.
    """
    if codec is CDCV2 and shown.granted is not None:
        raise NotPermitted("CDCV2 has whole rows, and not every column and image is granted")
    if codec is CDCV2 and not shown.cuts_nothing:
        raise InvalidRequest("CDCV2 has whole rows, and the view has some of their columns")
    # What a view cuts goes first: grants see what is left.
    codec = cut_codec(codec, shown.granted)
    views = tuple(each for each in shown.views if each.ids is not None)
    return _view_codec(codec, views) if views else codec  # type: ignore[arg-type]


@lru_cache(_CODECS_MAX)
def _view_codec(codec: Codec, views: tuple[ShownView, ...]) -> Codec:
    return ViewCodec(codec, views)
