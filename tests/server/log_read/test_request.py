"""The options of a read: each name and value is understood, and each mistake is named."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.cursor import Cursor
from tailrace.errors import CursorInvalid, InvalidRequest
from tailrace.tls import Tls
from tailrace_server.log_read.request import Deduplication, ReadRequest, Shape
from tailrace_server.typed.misfits import OnMisfit

PLACE = {"log": "/log", "catalog": "shop", "entityType": "product"}
CURSOR = Cursor(UUID(int=7), 12, 3)


def test_every_option_is_read_whatever_its_case() -> None:
    options = {
        "LOG": "/log",
        "Catalog": "shop",
        "entitytype": "product",
        "SHAPE": "Changes",
        "columns": "id, price",
        "startingversion": "7",
        "ENDINGTIMESTAMP": "2026-05-04 10:30:00",
        "where": "price > 1",
        "deduplicationMode": "netchanges",
        "computeUpdates": "TRUE",
        "misfits": "null",
        "rowsPerPart": "10",
        "schemaVersion": "9",
        "maxRowsPerBatch": "5",
    }
    found = ReadRequest.of(options, also=("maxRowsPerBatch",))
    assert found == ReadRequest(
        log=Path("/log"),
        catalog="shop",
        entity_type="product",
        columns=("id", "price"),
        starting=7,
        ending=datetime(2026, 5, 4, 10, 30, tzinfo=UTC),
        where="price > 1",
        deduplication=Deduplication.NET_CHANGES,
        compute_updates=True,
        on_misfit=OnMisfit.NULL,
        rows_per_part=10,
        schema_version=9,
    )


def test_places_cursors_names_and_states_have_other_forms_too() -> None:
    found = ReadRequest.of(
        {"path": "/a/log/shop", "entityType": "p", "startingCursor": str(CURSOR)}
    )
    assert (found.log, found.catalog, found.starting) == (Path("/a/log"), "shop", CURSOR)
    found = ReadRequest.of(PLACE | {"shape": "state", "timestamp": "2026-05-04T12:30:00+02:00"})
    assert (found.shape, found.at) == (Shape.STATE, datetime(2026, 5, 4, 10, 30, tzinfo=UTC))
    assert ReadRequest.of(PLACE | {"columns": '["a,b", "c"]'}).columns == ("a,b", "c")
    options = {"server": "host:1", "catalog": "shop", "token": "secret", "shape": "captures"}
    remote = ReadRequest.of(options | {"TLSca": "a.crt", "tlsKey": "b.key", "tls": "true"})
    assert (remote.server, remote.log, remote.entity_type) == ("host:1", None, None)
    assert (remote.token, remote.tls) == ("secret", Tls(ca="a.crt", key="b.key"))
    assert "secret" not in repr(remote)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startVersion": "1"}, "option 'startVersion' is unknown; did you mean startingVersion?"),
        ({"Catalog": "other"}, "option catalog is given twice"),
        ({"path": "/a/b"}, "give either path, which ends with the catalog, or log and catalog"),
        ({"catalog": ""}, "option catalog is missing"),
        ({"server": "host:1"}, "give log or server"),
        ({"token": "secret"}, "token and tls belong to server"),
        ({"log": ""}, "option log is missing"),
        ({"entityType": ""}, "a read of changes needs entityType"),
        ({"shape": "change"}, "option shape: 'change' is unknown; did you mean changes?"),
        ({"startingVersion": "-1"}, "option startingVersion: '-1' is not a version"),
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "exclude each other"),
        ({"startingTimestamp": "soon"}, "'soon' is not a time: write it as 2026-05-04T10:30:00Z"),
        ({"startingVersion": "9", "endingVersion": "8"}, "the start 9 is after the end 8"),
        (
            {"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"},
            "the start 2026-01-02 .* is after the end",
        ),
        (
            {"startingCursor": str(CURSOR), "endingVersion": "11"},
            "the start 12 is after the end 11",
        ),
        ({"startingCursor": f"2.{7:032x}.5.." + "0" * 16}, "inside the initial state"),
        ({"shape": "state", "startingVersion": "1"}, "a state has no range"),
        ({"version": "1"}, "version and timestamp belong to the shape state"),
        ({"shape": "state", "version": "1", "timestamp": "2026-01-01"}, "exclude each other"),
        ({"shape": "captures", "where": "id = 1"}, "where belongs to the shapes changes and state"),
        ({"shape": "state", "deduplicationMode": "netChanges"}, "belongs to the shape changes"),
        ({"deduplicationMode": "net"}, "known: netChanges, none"),
        ({"computeUpdates": "yes"}, "option computeUpdates: 'yes' is neither true nor false"),
        ({"columns": " , "}, "columns is empty"),
        ({"columns": "[1]"}, "is not a list of names"),
        ({"rowsPerPart": "0"}, "option rowsPerPart: '0' is not a count"),
        ({"misfits": "nul"}, "'nul' is unknown; did you mean null?"),
    ],
)
def test_a_mistake_in_the_options_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ReadRequest.of(PLACE | options)


def test_a_text_that_is_no_cursor_is_refused() -> None:
    with pytest.raises(CursorInvalid):
        ReadRequest.of(PLACE | {"startingCursor": "12:3"})


def test_unknown_change_types_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="did you mean update_postimage"):
        ReadRequest(
            log=Path("/log"),
            catalog="shop",
            entity_type="product",
            change_types=frozenset({"update_postimages"}),
        )
