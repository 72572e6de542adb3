"""The formats of messages: Avro makes the log that JSON makes, rows are named, and what cannot be read."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import options_of
from tailrace_server.pipeline.feed.source import SourceRefused, SourceUnreachable
from tailrace_server.pipeline.kafka.options import KafkaOptions
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.kafka.test_topics import Shop
from tests.server.pipeline.shapes import line, postgres
from tests.support.kafka_brokers import Brokers, mock_cluster
from tests.support.polling import wait_until
from tests.support.schema_registry import Registry, avro, framed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

TOPIC = "shop.public.product"


def optional(kind: Any) -> Any:
    return ["null", kind]


def connect(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name}


def record(name: str, /, **fields: Any) -> Any:
    """Return an Avro record."""
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": f"{TOPIC}.{name}", "fields": listed}


DECIMAL = "org.apache.kafka.connect.data.Decimal"
SCALE = {"scale": "2", "connect.decimal.precision": "10"}
MICROS = "io.debezium.time.MicroTimestamp"
ANY = connect("record", "io.debezium.data.VariableScaleDecimal") | {
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}
ANY_BLOCK = {"type": "struct", "name": ANY["name"]}
ANY_TEXT = '{"scale":1,"value":"Bw=="}'
COLUMNS: dict[str, tuple[Any, dict[str, Any], list[tuple[Any, str]]]] = {
    # column → its Avro type, what Connect's schema has of it, and values in Avro and in JSON
    "id": ("long", {"type": "int64", "optional": False}, [(2**62 + 1, f"{2**62 + 1}"), (2, "2")]),
    "made": (connect("long", MICROS), {"type": "int64", "name": MICROS}, [(7, "7"), (-1, "-1")]),
    "price": (
        optional(
            connect("bytes", DECIMAL)
            | {"logicalType": "decimal", "precision": 10, "scale": 2, "connect.parameters": SCALE}
        ),
        {"type": "bytes", "name": DECIMAL, "parameters": SCALE, "optional": True},
        [(b"\x04\xd2", '"BNI="'), (None, "null")],
    ),
    "day": (
        {"type": "int", "logicalType": "date", "connect.name": "io.debezium.time.Date"},
        {"type": "int32", "name": "io.debezium.time.Date"},
        [(19_000, "19000"), (0, "0")],
    ),
    "any": (
        optional(ANY),
        ANY_BLOCK | {"optional": True},
        [({"scale": 1, "value": b"\x07"}, ANY_TEXT), (None, "null")],
    ),
    "all": (ANY["name"], ANY_BLOCK, [({"scale": 1, "value": b"\x07"}, ANY_TEXT)] * 2),
    "size": ({"type": "int", "connect.type": "int16"}, {"type": "int16"}, [(5, "5"), (-5, "-5")]),
    "ratio": ("double", {"type": "double"}, [(float("nan"), '"NaN"'), (0.1, "0.1")]),
    "rate": ("float", {"type": "float"}, [(0.1, "0.1"), (float("-inf"), '"-Infinity"')]),
    "photo": ("bytes", {"type": "bytes"}, [(b"\xff\0", '"/wA="'), (b"", '""')]),
    "name": (
        optional("string"),
        {"type": "string", "optional": True},
        [("cüp", '"cüp"'), (None, "null")],
    ),
    "tags": (
        {"type": "array", "items": optional("string")},
        {"type": "array"},
        [(["a", None], '["a",null]'), ([], "[]")],
    ),
    "more": (
        {"type": "map", "values": "double"},
        {"type": "map"},
        [({"a": 1.5}, '{"a":1.5}'), ({}, "{}")],
    ),
}
SOURCE = record(
    "Source",
    **{name: "string" for name in ("connector", "name", "db", "schema", "table")},
    **{"ts_ms": "long", "txId": optional("long"), "lsn": optional("long")},
)
VALUE = record("Value", **{name: kind for name, (kind, *_) in COLUMNS.items()})
ENVELOPE = record(
    "Envelope",
    **{"before": optional(VALUE), "after": optional(f"{TOPIC}.Value"), "source": SOURCE},
    **{"op": "string", "ts_ms": optional("long"), "transaction": optional("string")},
)
KEY = record("Key", id="long")
BLOCK = {
    "type": "struct",
    "fields": [
        {
            "field": name,
            "type": "struct",
            "optional": True,
            "fields": [{"field": each, **block} for each, (_, block, _) in COLUMNS.items()],
        }
        for name in ("before", "after")
    ],
}


def image(at: int, form: int) -> dict[str, Any]:
    """Return the values of a row: 0 in Avro, 1 in JSON."""
    return {name: values[at][form] for name, (*_, values) in COLUMNS.items()}


def text_of(row: dict[str, str]) -> bytes:
    return b"{%b}" % ",".join(f'"{name}":{text}' for name, text in row.items()).encode()


def messages(form: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield an insert, a change of it, another row, a removal and its tombstone: key and value."""
    changes = [("c", None, 0), ("u", 0, 0), ("c", None, 1), ("d", 0, None)]
    for number, (op, *images) in enumerate(changes):
        identity = {"id": COLUMNS["id"][2][images[1] or 0][0]}
        rest = {"source": postgres(number + 1, number), "op": op, "ts_ms": None}
        if form == "debezium-avro":
            before, after = (at if at is None else image(at, 0) for at in images)
            value = {"before": before, "after": after, **rest, "transaction": None}
            yield avro(1, KEY, identity), avro(2, ENVELOPE, value)
        else:
            texts = [b"null" if at is None else text_of(image(at, 1)) for at in images]
            payload = b'{"before":%b,"after":%b,%b' % (*texts, line(rest)[1:])
            text = b'{"schema":%b,"payload":%b}' % (line(BLOCK), payload)
            key = line(identity)
            yield (framed(3, key), framed(3, text)) if number == 1 else (key, text)
    last = {"id": COLUMNS["id"][2][0][0]}
    yield avro(1, KEY, last) if form == "debezium-avro" else framed(3, line(last)), None


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry().up() as up:
        up.add(1, KEY)
        up.add(2, ENVELOPE)
        up.add(3, {"type": "object"}, kind="JSON")
        yield up


@pytest.fixture(scope="module")
def brokers() -> Brokers:
    return mock_cluster()


def shop_of(brokers: Brokers, root: Path, topic: str, registry: Registry | None, form: str) -> Shop:
    url = None if registry is None else registry.url
    shop = Shop(brokers, root)
    shop.options = KafkaOptions(
        bootstrap=brokers.servers, topics=(topic,), schema_registry=url, format=form
    )
    return shop


def test_avro_makes_the_log_that_json_makes(
    brokers: Brokers, registry: Registry, tmp_path: Path
) -> None:
    """With the types of the columns; JSON may have the frame of a registry."""
    logs = []
    for form in ("debezium-json", "debezium-avro"):
        for key, value in messages(form):
            brokers.send(form, value, key=key)
        shop = shop_of(brokers, tmp_path / form, form, registry, form)
        counters = shop.ingest(source=Debezium())
        assert (counters.quarantined, counters.versions) == (0, 4)
        columns = CommitLog.open(shop.catalog).schemas.newest
        logs.append((data(shop.catalog), leads(shop.catalog), columns))
    assert logs[0] == logs[1]


BAD_AVRO = {
    b'{"id":1}': "does not begin with 0 and the id",
    framed(2, b"\2"): "not Avro of schema 2: ",
    avro(1, KEY, {"id": 1}) + b"more": "not Avro of schema 1: 4 more bytes",
    framed(3, b"{}"): "schema 3 is JSON, not Avro",
}


def test_messages_that_are_no_avro_go_to_quarantine(
    brokers: Brokers, registry: Registry, tmp_path: Path
) -> None:
    brokers.send("bad", *BAD_AVRO)
    shop = shop_of(brokers, tmp_path, "bad", registry, "debezium-avro")
    assert shop.ingest().quarantined == len(BAD_AVRO)
    for (reason, text), (value, wanted) in zip(quarantine(shop), BAD_AVRO.items(), strict=True):
        assert wanted in reason
        assert base64.b64decode(orjson.loads(text)["message"]["value"]) == value


def quarantine(shop: Shop) -> list[tuple[str, str]]:
    """Return reason and text of the messages in quarantine, which are all of one partition."""
    files = (shop.catalog / "quarantine").iterdir()
    lines = (text for file in files for text in file.read_bytes().splitlines())
    found = sorted(map(orjson.loads, lines), key=lambda each: (each["file"], each["line"]))
    assert all("+0+" in each["file"] for each in found)
    return [(each["reason"], each["raw"]) for each in found]


def test_rows_alone_are_named_by_their_keys(brokers: Brokers, tmp_path: Path) -> None:
    """A key may be a value, an object or plain text; a null removes; each message is a version."""
    brokers.send("rows", b'{ "a": 1,\n\t"b": 1e400 }', key=b"7")
    brokers.send("rows", framed(1, b'{"a":2}'), key=b'{ "id": 1 }')
    brokers.send("rows", b'{"a":3}', key=b"sku-1")
    brokers.send("rows", None, b'{"a":4}', b" null ", key=b"7")
    brokers.send("rows", b'{"id":8}')
    shop = shop_of(brokers, tmp_path, "rows", None, "json")
    assert shop.ingest().quarantined == 0, quarantine(shop)
    assert len(leads(shop.catalog)) == 7
    found = [(each.entity_type, each.primary_key, each.after) for each in data(shop.catalog)]
    assert found == [
        ("rows", "7", b'{"a":1,"b":1e400}'),
        ("rows", "1", b'{"a":2}'),
        ("rows", "sku-1", b'{"a":3}'),
        ("rows", "7", None),
        ("rows", "7", b'{"a":4}'),
        ("rows", "7", None),
        ("rows", "8", b'{"id":8}'),
    ]


BAD_ROWS: list[tuple[bytes | None, bytes | None, str]] = [
    (None, None, "neither a key nor a value"),
    (None, b'{"a":1}', "no key: the image has no column id"),
    (b"null", b'{"a":1}', "the message key is null"),
    (b"1", b"[1]", "an image is not a JSON object"),
    (b"1", b'{"a":1},"op":"d","x":{}', "the value is not JSON"),
    (b"1", b'{"a":NaN}', "the value is not JSON"),
    (b"1", b'{"a":"\xff"}', "the value is not JSON"),
    (b"1", b"", "the value is not JSON"),
    (b'{"id":', b'{"a":1}', "the key is not JSON"),
    (b"\xff", b'{"a":1}', "the key is neither JSON nor text"),
    (b"true", b'{"a":1}', "a boolean, which cannot be interpreted"),
]


def test_rows_that_cannot_be_used_go_to_quarantine(brokers: Brokers, tmp_path: Path) -> None:
    for key, value, _ in BAD_ROWS:
        brokers.send("badrows", value, key=key)
    shop = shop_of(brokers, tmp_path, "badrows", None, "json")
    assert shop.ingest().quarantined == len(BAD_ROWS)
    for (reason, _), (*_, wanted) in zip(quarantine(shop), BAD_ROWS, strict=True):
        assert wanted in reason


@pytest.mark.parametrize(
    ("url", "error", "reason"),
    [
        (None, InvalidRequest, "this format needs --schema-registry"),
        ("http://me:hidden@127.0.0.1:1", SourceUnreachable, "registry http://127.0.0.1:1: "),
    ],
)
def test_a_registry_that_is_not_there_creates_no_catalog(
    brokers: Brokers, tmp_path: Path, url: str | None, error: type[Exception], reason: str
) -> None:
    shop = shop_of(brokers, tmp_path, "bad", None, "debezium-avro")
    with pytest.raises(error, match=reason) as caught:
        shop.ingest(schema_registry=url)
    assert "hidden" not in str(caught.value)
    assert not shop.catalog.exists()


def test_a_schema_that_the_registry_lacks_ends_the_run(
    brokers: Brokers, registry: Registry, tmp_path: Path
) -> None:
    brokers.send("unknown", framed(77, b"\0"))
    shop = shop_of(brokers, tmp_path, "unknown", registry, "debezium-avro")
    with pytest.raises(SourceRefused, match=r"unknown/0 at offset 0: .*give the registry of"):
        shop.ingest()
    assert shop.offsets() == {}


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--format 'avro': choose debezium-json, "):
        options_of(KafkaOptions)["format"].value("avro")


def test_a_registry_that_goes_away_delays_messages(brokers: Brokers, tmp_path: Path) -> None:
    """New attempts follow until it is back."""
    registry = Registry()
    registry.add(1, KEY)
    registry.add(2, ENVELOPE)
    sent = list(messages("debezium-avro"))
    shop = shop_of(brokers, tmp_path, "late", registry, "debezium-avro")
    brokers.send("late", b"x")
    stopping = Stopping()
    with ThreadPoolExecutor(1) as threads:
        with registry.up():
            run = threads.submit(shop.ingest, follow=True, source=Debezium(), stopping=stopping)
            wait_until(lambda: bool(shop.offsets()) or run.done())
        for key, value in sent:
            brokers.send("late", value, key=key)
        wait_until(lambda: len(shop.reporter.complaints) > 0)
        with registry.up():
            wait_until(lambda: len(leads(shop.catalog)) == 4 or run.done())
            stopping.set()
        run.result()
    assert "a new attempt follows in 1 s" in shop.reporter.complaints[0]
