"""Loading the compiled encoder: when it begins, and that frames do not change with it."""

from __future__ import annotations

from tailrace_server.codecs import PROTOBUF, compiled_encoder_loader
from tailrace_server.codecs.frame_writer import FrameWriter
from tests.server.codecs.batches import capture, columns


def test_a_large_batch_begins_the_loading_once_and_the_frames_stay_the_same() -> None:
    many = columns([capture(changed=["id"])] * 1_000, by_column=False, wanted=set())
    before = PROTOBUF.messages(many, 4_096).data
    thread = compiled_encoder_loader.begin_loading()
    thread.join()
    assert compiled_encoder_loader.begin_loading() is thread
    assert isinstance(compiled_encoder_loader.encoder_for(1), FrameWriter)
    assert PROTOBUF.messages(many, 4_096).data == before
