"""The exporter, from a real log to files and back through the reader."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cdcv2 import Progress
from tailrace.criteria import Operation
from tailrace.errors import ImagesMissing, InvalidRequest, LogUnreadable, PositionCompacted
from tailrace_server.export import cdcv2
from tailrace_server.export.cdcv2 import Cdcv2Export, ExportProgress
from tailrace_server.export.errors import FolderTaken, ImageUnfit
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.upkeep import compaction, retention
from tests.server.export.logs import (
    MAPPING,
    Shop,
    collections,
    export,
    image,
    item,
    schema,
    settings,
    statements,
)
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cdcv2 import Statement


def history_of(shop: Shop, start: int = 1) -> dict[int, Any]:
    """Return the collection after each version that changes it."""
    return {
        version: rows
        for version, rows in enumerate(shop.history)
        if version >= start and (version == start > 1 or rows != shop.history[version - 1])
    }


def publish(root: Path, *transactions: list[Mutation], mapping: SchemaMapping = MAPPING) -> None:
    with OlderWriter.open(root, "shop", mapping=mapping) as writer:
        for transaction in transactions:
            writer.append(transaction)


def test_contract_41_an_export_tiles_time_from_zero_and_reads_back_equal(
    log_root: Path, tmp_path: Path
) -> None:
    shop = Shop(log_root)
    shop.write(60)
    assert export(log_root, tmp_path / "out") == 61
    found, frontier = collections(statements(tmp_path / "out"))
    assert (found, frontier) == (history_of(shop), 61)
    intervals = [
        (s.lower, s.upper) for s in statements(tmp_path / "out") if isinstance(s, Progress)
    ]
    assert intervals[0][0] == (0,)
    assert all(upper == lower for (_, upper), (lower, _) in pairwise(intervals))


@pytest.mark.parametrize("seed", range(3))
def test_mangled_output_of_two_exporters_reads_back_equal(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two exporters of one history, with files of other sizes, restarted as the log grows."""
    shop = Shop(log_root, seed)
    first, second = tmp_path / "first", tmp_path / "second"
    for _ in range(3):
        shop.write(15)
        monkeypatch.setattr(cdcv2, "UPDATES_MAX", 7)
        export(log_root, first)
    monkeypatch.setattr(cdcv2, "UPDATES_MAX", 23)
    export(log_root, second)
    messages = statements(first, second)
    mangler = random.Random(seed)
    mangled: list[Statement[int]] = []
    for message in messages * 2:
        if isinstance(message, Progress):
            mangled.append(message)
            continue
        cut = mangler.randint(0, len(message))
        mangled += [message[cut:], message[:cut], [*message[:cut], *message[:cut]]]
    mangler.shuffle(mangled)
    assert collections(mangled) == (history_of(shop), 46)


def test_rows_with_floats_that_json_lacks_are_exported_and_cancelled(
    log_root: Path, tmp_path: Path
) -> None:
    mapping = SchemaMapping.parse('[entity_types.item.columns]\nprice = { type = "DOUBLE" }')
    images = [b'{"id":1,"price":"%b"}' % text for text in (b"NaN", b"Infinity", b"-Infinity")]
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        for before, after in pairwise((None, *images, images[0], None)):
            operation = Operation.REMOVE if after is None else Operation.UPSERT
            writer.append([Mutation("item", "1", operation, before, after)])
        writer.commit(publish=True)
    export(log_root, tmp_path / "out")
    found, frontier = collections(statements(tmp_path / "out"))
    prices = [[price for _, price in rows] for rows in found.values()]
    assert (str(prices), frontier) == ("[[nan], [inf], [-inf], [nan], []]", 6)


def test_a_restart_goes_on_where_the_folder_ends(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(log_root)
    shop.write(40)
    monkeypatch.setattr(cdcv2, "UPDATES_MAX", 5)
    out = tmp_path / "out"
    export(log_root, out)
    names = sorted(path.name for path in out.glob("*.avro"))
    for lost in names[3:]:
        (out / lost).unlink()
    export(log_root, out)
    assert sorted(path.name for path in out.glob("*.avro")) == names
    (out / names[4]).unlink()
    export(log_root, out)
    assert collections(statements(out)) == (history_of(shop), 41)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_log_that_ends_before_its_folder_is_told(log_root: Path, tmp_path: Path) -> None:
    """It was restored from an older copy. What comes in the place of its versions would be left out."""
    publish(log_root, [item(1, None, 1)])
    shutil.copytree(log_root / "shop", tmp_path / "older")
    publish(log_root, [item(1, 1, 2)])
    export(log_root, tmp_path / "out")
    shutil.rmtree(log_root / "shop")
    (tmp_path / "older").rename(log_root / "shop")
    with pytest.raises(FolderTaken, match="versions up to 2, but the log ends at 1"):
        export(log_root, tmp_path / "out")
    publish(log_root, [item(1, 1, 3)])
    publish(log_root, [item(1, 3, 4)])
    with pytest.raises(FolderTaken, match=r"restored from an older copy and written again"):
        export(log_root, tmp_path / "out")


def test_stopping_ends_behind_a_file(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(log_root)
    shop.write(20)
    monkeypatch.setattr(cdcv2, "UPDATES_MAX", 1)
    stopping = Event()
    with Cdcv2Export.begin(settings(log_root, tmp_path / "out"), stopping) as exporting:
        stopping.set()
        assert exporting.advance().files == 1
    with pytest.raises(InterruptedError):
        Cdcv2Export.begin(settings(log_root, tmp_path / "out"), stopping)
    told: list[ExportProgress] = []
    with Cdcv2Export.begin(settings(log_root, tmp_path / "out")) as exporting:
        exporting.advance(told.append)
    assert [each.files for each in told] == list(range(1, len(told) + 1))
    assert collections(statements(tmp_path / "out")) == (history_of(shop), 21)


def test_since_begins_with_the_snapshot_at_that_version(log_root: Path, tmp_path: Path) -> None:
    shop = Shop(log_root)
    shop.write(40)
    out = tmp_path / "out"
    assert export(log_root, out, since=20) == 41
    assert collections(statements(out)) == (history_of(shop, 20), 41)
    shop.write(10)
    assert export(log_root, out, since=20) == 51
    assert collections(statements(out)) == (history_of(shop, 20), 51)


@pytest.mark.parametrize("since", [0, 41, -3])
def test_since_names_a_published_version(log_root: Path, tmp_path: Path, since: int) -> None:
    Shop(log_root).write(40)
    with pytest.raises(InvalidRequest, match="versions are 1 to 40"):
        export(log_root, tmp_path / "out", since=since)


def test_other_starts_and_other_things_are_kept_out_of_a_folder(
    log_root: Path, tmp_path: Path
) -> None:
    Shop(log_root).write(12)
    Shop(log_root, catalog="other").write(12)
    out = tmp_path / "out"
    export(log_root, out)
    before = sorted(out.iterdir())
    for more in ({"since": 3}, {"entity_type": "other"}, {"catalog": "other"}):
        with pytest.raises(FolderTaken, match=r"'item' of catalog .* from the log's beginning"):
            export(log_root, out, **more)
    assert sorted(out.iterdir()) == before
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "invoice.avro").touch()
    with pytest.raises(FolderTaken, match=r"invoice\.avro, which is not a file of an export"):
        export(log_root, strange)
    (out / "_export.json").write_text("{}")
    with pytest.raises(FolderTaken, match=r"damaged _export\.json"):
        export(log_root, out)


def test_what_is_not_there_is_named(log_root: Path, tmp_path: Path) -> None:
    Shop(log_root).write(3)
    with pytest.raises(InvalidRequest, match="no entity type 'itme'; did you mean item"):
        export(log_root, tmp_path / "out", entity_type="itme")
    with pytest.raises(LogUnreadable):
        export(log_root, tmp_path / "out", catalog="ship")
    assert not (tmp_path / "out").exists()


def test_only_what_is_published_is_stated(log_root: Path, tmp_path: Path) -> None:
    with LogWriter.open(log_root, "shop", mapping=MAPPING) as writer:
        writer.append([item(1, None, 1)])
        writer.commit()
        writer.publish()
        writer.append([item(1, 1, 2)])
        writer.commit()
        assert export(log_root, tmp_path / "out") == 2
        assert collections(statements(tmp_path / "out")) == ({1: {(1, 1): 1}}, 2)


def test_a_log_that_no_longer_reaches_back_is_said_before_anything_is_written(
    log_root: Path, tmp_path: Path
) -> None:
    shop = Shop(log_root)
    shop.write(20)
    out = tmp_path / "out"
    export(log_root, out)
    shop.write(20)
    retention.trim(log_root / "shop", 15, 10**15)
    assert export(log_root, out) == 41
    assert collections(statements(out)) == (history_of(shop), 41)
    for more in ({}, {"since": 30}):
        with pytest.raises(PositionCompacted, match="1:0 is no longer"):
            export(log_root, tmp_path / "new", **more)
    shop.write(20)
    retention.trim(log_root / "shop", 50, 10**15)
    with pytest.raises(PositionCompacted, match="41:0 is no longer"):
        export(log_root, out)
    assert not (tmp_path / "new").exists()


def test_a_compaction_meanwhile_is_no_hindrance(log_root: Path, tmp_path: Path) -> None:
    shop = Shop(log_root)
    shop.write(20)
    with Cdcv2Export.begin(settings(log_root, tmp_path / "out")) as exporting:
        now = 10**15
        compaction.compact(log_root / "shop", now)
        retention.delete_unnamed(log_root / "shop", now + 10**12)
        assert exporting.advance().frontier == 21
    assert collections(statements(tmp_path / "out")) == (history_of(shop), 21)


MISSING = {
    "an update": [Mutation("item", "1", after=image(1, 2))],
    "a removal": [Mutation("item", "1", Operation.REMOVE)],
    "an expiry": [Mutation("item", "1", Operation.EXPIRE)],
    "nothing after": [Mutation("item", "2")],
}


@pytest.mark.parametrize("transaction", MISSING.values(), ids=MISSING)
def test_a_record_without_its_images_is_an_error_before_the_first_message(
    log_root: Path, tmp_path: Path, transaction: list[Mutation]
) -> None:
    publish(log_root, [item(1, None, 1)], [item(3, None, 1)], transaction)
    with pytest.raises(ImagesMissing) as caught:
        export(log_root, tmp_path / "out")
    assert (caught.value.version, caught.value.key) == (3, transaction[0].primary_key)
    assert not (tmp_path / "out").exists()


def test_a_record_without_its_images_ends_a_stream_behind_the_version_before(
    log_root: Path, tmp_path: Path
) -> None:
    publish(log_root, [item(1, None, 1)])
    with Cdcv2Export.begin(settings(log_root, tmp_path / "out")) as exporting:
        publish(log_root, [item(1, 1, 2)], [Mutation("item", "1", after=image(1, 3))])
        with pytest.raises(ImagesMissing, match="version 3"):
            exporting.advance()
    assert collections(statements(tmp_path / "out")) == ({1: {(1, 1): 1}, 2: {(1, 2): 1}}, 3)


def test_a_row_that_came_again_is_an_insert(log_root: Path, tmp_path: Path) -> None:
    publish(log_root, [item(1, None, 1)], [item(1, 1, None)], [item(1, None, 2)])
    export(log_root, tmp_path / "out")
    found, _ = collections(statements(tmp_path / "out"))
    assert found == {1: {(1, 1): 1}, 2: {}, 3: {(1, 2): 1}}


def test_a_late_version_is_no_fault(log_root: Path, tmp_path: Path) -> None:
    """What came too late for its transaction adds up all the same."""
    with LogWriter.open(log_root, "shop", mapping=MAPPING) as writer:
        writer.append([item(1, 1, 2)])
        writer.append([item(1, None, 1)], late=True, of=0)
    export(log_root, tmp_path / "out")
    found, _ = collections(statements(tmp_path / "out"))
    assert found == {1: {(1, 1): -1, (1, 2): 1}, 2: {(1, 2): 1}}


def test_a_truncate_takes_all_rows_away(log_root: Path, tmp_path: Path) -> None:
    truncate = Mutation("item", None, Operation.REMOVE)
    publish(
        log_root,
        [item(1, None, 1), item(2, None, 2)],
        [truncate],
        [item(3, None, 3)],
        [truncate, item(4, None, 4)],
    )
    export(log_root, tmp_path / "out")
    found, frontier = collections(statements(tmp_path / "out"))
    assert found == {1: {(1, 1): 1, (2, 2): 1}, 2: {}, 3: {(3, 3): 1}, 4: {(4, 4): 1}}
    assert frontier == 5


def test_rows_without_keys_keep_their_number(log_root: Path, tmp_path: Path) -> None:
    row = image(1, 1)

    def times(diff: int, before: bytes | None, after: bytes | None) -> list[Mutation]:
        operation = Operation.UPSERT if after else Operation.REMOVE
        change = b'{"diff":%d}' % diff
        return [Mutation("item", "[1,1]", operation, before, after, change, changed=None)]

    with LogWriter.open(log_root, "shop", mapping=MAPPING) as writer:
        writer.append(times(2, None, row))
        writer.append(times(-2, row, None))
    export(log_root, tmp_path / "out")
    found, _ = collections(statements(tmp_path / "out"))
    assert found == {1: {(1, 1): 2}, 2: {}}


def test_changes_that_cancel_are_not_stated(log_root: Path, tmp_path: Path) -> None:
    publish(log_root, [item(1, None, 1)], [item(1, 1, 2), item(1, 2, 1)], [item(1, 1, 1)])
    export(log_root, tmp_path / "out")
    assert collections(statements(tmp_path / "out")) == ({1: {(1, 1): 1}}, 4)
    progress = [each for each in statements(tmp_path / "out") if isinstance(each, Progress)]
    assert progress == [Progress((0,), (4,), ((1, 1),))]


def test_a_row_that_does_not_fit_ends_the_stream_and_names_it(
    log_root: Path, tmp_path: Path
) -> None:
    publish(log_root, [item(1, None, 1)])
    out = tmp_path / "out"
    export(log_root, out)
    grown = Mutation("item", "2", after=image(2, 1, colour="red"))
    publish(log_root, [item(1, 1, 2)], [grown], [item(1, 2, 3)])
    with pytest.raises(ImageUnfit, match="version 3, key '2': column 'colour' is not") as caught:
        export(log_root, out)
    assert (caught.value.version, caught.value.key) == (3, "2")
    assert collections(statements(out)) == ({1: {(1, 1): 1}, 2: {(1, 2): 1}}, 3)
    assert export(log_root, tmp_path / "new", since=3) == 5
    found, _ = collections(statements(tmp_path / "new"))
    assert found[4] == {(1, 3, None): 1, (2, 1, "red"): 1}


def test_an_export_can_take_the_columns_of_another(log_root: Path, tmp_path: Path) -> None:
    publish(log_root, [item(1, None, 1)])
    export(log_root, tmp_path / "first")
    publish(log_root, [Mutation("item", "2", after=image(2, 1, colour="red"))])
    with pytest.raises(ImageUnfit):
        export(log_root, tmp_path / "second", like=tmp_path / "first")
    assert schema(tmp_path / "first") == schema(tmp_path / "second")
    assert collections(statements(tmp_path / "first", tmp_path / "second"))[1] == 2
    export(log_root, tmp_path / "grown")
    with pytest.raises(FolderTaken, match="has other columns than"):
        export(log_root, tmp_path / "grown", like=tmp_path / "first")
    for like, text in ((tmp_path / "none", "no export"), (tmp_path / "first", "beginning, but")):
        with pytest.raises(InvalidRequest, match=text):
            export(log_root, tmp_path / "third", like=like, since=2)


def test_a_renamed_entity_type_and_column_stay_one_stream(log_root: Path, tmp_path: Path) -> None:
    publish(log_root, [item(1, None, 1)])
    renamed = SchemaMapping.parse(
        """
        [entity_types.product]
        renamed_from = "item"
        [entity_types.product.columns.cost]
        renamed_from = "price"
        """
    )
    after = Mutation("product", "1", before=b'{"id":1,"cost":1}', after=b'{"id":1,"cost":2}')
    publish(log_root, [after], mapping=renamed)
    export(log_root, tmp_path / "out", entity_type="product")
    assert collections(statements(tmp_path / "out")) == ({1: {(1, 1): 1}, 2: {(1, 2): 1}}, 3)
    fields = schema(tmp_path / "out")[0]["items"]["fields"][0]["type"]["fields"]
    assert [field["name"] for field in fields] == ["id", "cost"]


def test_the_schema_says_null_where_a_column_may_be_absent(log_root: Path, tmp_path: Path) -> None:
    publish(log_root, [item(1, None, 1)])
    export(log_root, tmp_path / "out")
    fields = schema(tmp_path / "out")[0]["items"]["fields"][0]["type"]["fields"]
    assert fields == [
        {"name": "id", "type": "long", "tailrace.type": "BIGINT"},
        {
            "name": "price",
            "type": ["null", "int"],
            "default": None,
            "tailrace.type": "INTEGER",
        },
    ]
