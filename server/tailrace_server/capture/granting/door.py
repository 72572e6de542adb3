"""Checks of grants at the engine's entrance, beside the narrowing of criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import NotPermitted
from tailrace_server.capture.codecs.cdcv2 import CDCV2
from tailrace_server.capture.delivery.subscription import Subscription
from tailrace_server.capture.fairness import Turn
from tailrace_server.capture.granting.images import cut_codec
from tailrace_server.capture.viewing.cut_codec import view_codec
from tailrace_server.capture.viewing.shown_views import ViewedRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.grant import Action, Allowance
    from tailrace_server.capture.granting.narrowing import Narrowed
    from tailrace_server.capture.principal import Principal
    from tailrace_server.capture.reads.log_read import LogRead


def knows(caller: Principal, catalog: str) -> bool:
    """Return whether a caller may know that a catalog exists."""
    return caller.grant(catalog) is not None


def may(caller: Principal, action: Action, catalog: str) -> bool:
    """Return whether a caller is granted an action for anything of a catalog."""
    grant = caller.grant(catalog)
    return grant is not None and grant.may(action)


def allowances_of(caller: Principal, catalog: str, action: Action | None) -> tuple[Allowance, ...]:
    """Return what a caller is granted of a catalog; with an action, for that.

    Raises:
        NotPermitted: Nothing.
    """
    grant = caller.grant(catalog)
    found = () if grant is None else grant.allowances if action is None else grant.of(action)
    if not found:
        raise NotPermitted(f"{action or 'reading'} is not granted for this catalog")
    return found


async def end_refused(streams: Iterable[Subscription | LogRead]) -> None:
    """End those whose caller is no longer granted all that they give."""
    turn = Turn()
    for each in streams:
        end_if_refused(each)
        if turn.is_over():
            await turn.give_way()


def end_if_refused(stream: Subscription | LogRead) -> None:
    """End a stream whose caller is no longer granted all that it gives."""
    if isinstance(stream, Subscription):
        if (refusal := stream.options.use.refusal()) is not None:
            # Where to go on with less, or once it is granted again.
            stream.end(NotPermitted(refusal, str(stream.resume_cursor())))
    elif (refusal := stream.use.refusal()) is not None:
        stream.end(NotPermitted(refusal))


def codec_of(codec: Codec, narrowed: Narrowed) -> Codec:
    """Return the codec that writes what is shown in a wire form.

    Raises:
        NotPermitted: CDCv2, which identifies a row by all of its bytes: without a column two rows may be one.
        InvalidRequest: CDCv2 of a view that has some columns.
    """
    if isinstance(narrowed.shown, ViewedRows):
        return view_codec(codec, narrowed.shown)
    if codec is CDCV2 and narrowed.shown is not None:
        raise NotPermitted("CDCV2 has whole rows, and not every column and image is granted")
    return cut_codec(codec, narrowed.shown)
