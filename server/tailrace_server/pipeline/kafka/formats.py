"""The formats of messages: each becomes the line of Debezium's JSON that the decoder of files takes.

================  ============================================================================================
``debezium-json``  the message as it is: its key, a TAB, and its value
``debezium-avro``  the JSON that JsonConverter would have written (`avro_json`)
``cdcv2``          the offset, 8 bytes big-endian, and the value: `pipeline.cdcv2.files` decodes it
``json``           an envelope around the row: the topic is its table, and ``null`` removes it
================  ============================================================================================

JSON may have the frame of a schema registry in front, except in ``cdcv2``. A message that cannot become a line
becomes one that the decoder refuses, with the reason and the message.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from tailrace_server.pipeline.cdcv2.files import OFFSET_WIDTH
from tailrace_server.pipeline.feed.source import SourceRefused
from tailrace_server.pipeline.kafka.avro_json import AvroJson
from tailrace_server.pipeline.kafka.schema_registry import BODY_AT, UnreadableMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from tailrace_server.pipeline.kafka.options import KafkaOptions

_JSON_STARTS: Final = b'{["'
"""First bytes of JSON that no plain text should have as a key."""


def line_maker(options: KafkaOptions) -> Callable[[Message], bytes]:
    """Return the function that turns a message into a line.

    The function raises `SourceUnreachable` and `SourceRefused` if it needs a schema that it cannot get.

    Raises:
        InvalidRequest: The format needs a registry, and none is given, or its settings are wrong.
        SourceUnreachable, SourceRefused: The registry cannot be read.
    """
    match options.format:
        case "debezium-avro":
            registry = options.client_of_registry()
            registry.check()
            return partial(_line, partial(_avro_line, AvroJson(registry)))
        case "json":
            return partial(_line, _row_line)
        case "cdcv2":
            if options.schema_registry:
                options.client_of_registry().check()
            return _numbered
        case _:
            return _debezium_line


def _numbered(message: Message) -> bytes:
    return (message.offset() or 0).to_bytes(OFFSET_WIDTH, "big") + (message.value() or b"")


def _debezium_line(message: Message) -> bytes:
    key, value = message.key(), message.value()
    if _has_json_frame(key if value is None else value):
        key, value = _unframed(key), _unframed(value)
    text = b"null" if value is None else value
    return text if key is None else b"%b\t%b" % (key, text)


def _line(make: Callable[[Message], bytes], message: Message) -> bytes:
    try:
        return make(message)
    except UnreadableMessage as error:
        parts = {"key": message.key(), "value": message.value()}
        shown = {n: None if v is None else base64.b64encode(v).decode() for n, v in parts.items()}
        return orjson.dumps({"undecodable": str(error), "message": shown})
    except SourceRefused as error:
        place = f"{message.topic()}/{message.partition()} at offset {message.offset()}"
        raise SourceRefused(f"{place}: {error}") from None


def _avro_line(avro: AvroJson, message: Message) -> bytes:
    key, value = message.key(), message.value()
    text = b"null" if value is None else avro.text(value)
    return text if key is None else _with_key(avro.text(key), text)


def _row_line(message: Message) -> bytes:
    key, value = _unframed(message.key()), _unframed(message.value())
    row = b"null" if value is None else _json(value, "value")
    kind, time = message.timestamp()
    source = orjson.dumps(
        {"connector": "kafka", "table": message.topic(), "ts_ms": time if kind else None}
    )
    if row == b"null" and key is None:
        raise UnreadableMessage("neither a key nor a value: no row is named")
    # An update, because nothing says whether the row is new.
    operation = b"d" if row == b"null" else b"u"
    envelope = b'{"before":null,"after":%b,"source":%b,"op":"%b"}' % (row, source, operation)
    return envelope if key is None else _with_key(_key(key), envelope)


def _key(key: bytes) -> bytes:
    """Return a key as JSON: it may be plain text."""
    try:
        return _json(key, "key")
    except UnreadableMessage:
        if key[:1] in _JSON_STARTS and key:
            raise
    try:
        return orjson.dumps(key.decode())
    except UnicodeDecodeError:
        raise UnreadableMessage("the key is neither JSON nor text") from None


def _json(text: bytes, what: str) -> bytes:
    """Return one JSON value without the white space around its parts, and digits as they are."""
    try:
        text.decode()
        return msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessage(f"the {what} is not JSON: {error}") from None


def _with_key(key: bytes, value: bytes) -> bytes:
    return b'{"key":%b,"value":%b}' % (key, value)


def _has_json_frame(text: bytes | None) -> bool:
    return text is not None and text[:1] == b"\0" and text[BODY_AT : BODY_AT + 1] == b"{"


def _unframed(text: bytes | None) -> bytes | None:
    return text[BODY_AT:] if text is not None and text[:1] == b"\0" else text
