"""Reads through a server are those of the log itself, under the server's grants."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace import Tls
from tailrace.criteria import Operation
from tailrace.cursor import Cursor
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    EntityTypeUnknown,
    InvalidRequest,
    NotPermitted,
    PositionCompacted,
    TlsFailed,
    TransportError,
    Unauthenticated,
)
from tailrace.log import read as read_log
from tailrace.position import END, Position
from tailrace_server.access.configured import Access
from tailrace_server.access.settings import AccessSettings
from tailrace_server.api.settings import TransportSecuritySettings
from tailrace_server.api.transport_security.files import TlsFiles
from tailrace_server.log_read.plan import plan
from tailrace_server.log_read.request import Deduplication, ReadRequest, Shape
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.upkeep import retention
from tests.server.log_read.histories import records_of, request, write
from tests.server.log_read.serving import serving
from tests.server.wal.base.tables import histories, naive
from tests.support.certificates import Authority
from tests.support.issuer import issuing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.issuer import TokenIssuer

POLICY = """
[[grant]]
who.claims = {{ role = "all" }}
who.issuer = "{issuer}"
catalogs = "*"

[[grant]]
who.issuer = "{issuer}"
who.claims = {{ role = "rows" }}
catalogs = "shop"
entity_types = "order"
where = "value > 1"

[[grant]]
who.issuer = "{issuer}"
who.claims = {{ role = "columns" }}
catalogs = "shop"
entity_types = "order"
hidden_columns = "value"
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with issuing() as found:
        yield found


def guarded(issuer: TokenIssuer, folder: Path) -> Access:
    policy = folder / "policy.toml"
    policy.write_text(POLICY.format(issuer=issuer.address))
    identities = issuer.settings(folder, keys=f"{issuer.address}/jwks")
    return Access(AccessSettings(identities=identities, policy=policy))


@st.composite
def whole_histories(draw: st.DrawFn) -> list[list[Mutation]]:
    """Return transactions of the table ``order`` whose images are all there."""
    rows: dict[str, bytes] = {"0": b'{"id":"0","value":1}'}
    transactions = []
    for _ in range(draw(st.integers(1, 6))):
        mutations = []
        for _ in range(draw(st.integers(0, 6))):
            key = draw(st.sampled_from(["0", "1", "2", "ä"]))
            image = b'{"id":"%s","value":%d}' % (key.encode(), draw(st.integers(0, 3)))
            match draw(st.sampled_from(["upsert", "upsert", "upsert", "remove", "truncate"])):
                case "upsert" if image != rows.get(key):
                    mutations.append(Mutation("order", key, before=rows.get(key), after=image))
                    rows[key] = image
                case "remove" if key in rows:
                    before = rows.pop(key)
                    mutations.append(Mutation("order", key, Operation.REMOVE, before=before))
                case "truncate":
                    mutations.append(Mutation("order", None, Operation.REMOVE))
                    rows.clear()
        transactions.append(mutations)
    return transactions


def outcome(asked: ReadRequest) -> Any:
    """Return what a read returns, or the class of its error."""
    try:
        planned = plan(asked)
        batches = [batch for part in planned.parts for batch in part.batches()]
    except InvalidRequest as error:
        return type(error)
    assert all(batch.schema.equals(planned.schema) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    if asked.shape is Shape.STATE or asked.deduplication is not Deduplication.NONE:
        rows.sort(key=repr)
    elif asked.shape is Shape.CHANGES:
        # The rows that a truncate removes are in no particular order.
        groups = [[*group] for _, group in groupby(rows, lambda row: row["_position"])]
        is_delete = lambda row: row["_change_type"] == "delete"
        rows = [
            row
            for group in groups
            for row in (sorted(group, key=repr) if all(map(is_delete, group)) else group)
        ]
    return planned.schema, planned.schema.metadata, planned.first, planned.last, rows


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.one_of(histories(), whole_histories()), st.data())
def test_a_read_through_a_server_is_that_of_the_log(
    history: list[list[Mutation]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, history)
        records = records_of(root)
        prefixes = (naive(records[:count], 99, "item") for count in range(len(records) + 1))
        assume(all(row.multiplicity >= 0 for each in prefixes for row in each.values()))
        uuid = open_catalog(root, "shop").view.uuid
        places = st.sampled_from(
            [Position(each[1], index) for each in records for index in (each[2], END)]
        )
        with serving(root) as address:
            for _ in range(8):
                table = data.draw(st.sampled_from(["order", "order", "item"]))
                begin, end = sorted(data.draw(st.tuples(places, places)))
                shape = data.draw(st.sampled_from([*Shape]))
                more: dict[str, Any] = {"rows_per_part": data.draw(st.integers(1, 9))}
                if table == "order" and shape is not Shape.CAPTURES:
                    more["where"] = data.draw(st.sampled_from([None, "value > 1", "id <> '1'"]))
                if shape is Shape.STATE:
                    more["at"] = end.version
                elif data.draw(st.booleans()):
                    more |= {"starting": max(1, begin.version), "ending": end.version}
                else:
                    more |= {
                        "starting": Cursor.past(uuid, begin),
                        "ending": Cursor.past(uuid, end),
                    }
                if shape is Shape.CHANGES and data.draw(st.booleans()):
                    more["deduplication"] = Deduplication.NET_CHANGES
                    more["compute_updates"] = data.draw(st.booleans())
                asked = request(root, table, shape=shape, **more)
                served = replace(asked, log=None, server=address)
                assert outcome(served) == outcome(asked), asked


def rows_of(asked: ReadRequest) -> list[dict[str, Any]]:
    return [
        row for part in plan(asked).parts for batch in part.batches() for row in batch.to_pylist()
    ]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(history=whole_histories(), data=st.data())
def test_a_read_under_grants_is_the_restricted_read_of_the_log(
    issuer: TokenIssuer, history: list[list[Mutation]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "log")
        root.mkdir()
        write(root, history)
        newest = 1 + len(history)
        with serving(root, guarded(issuer, Path(folder))) as address:
            for role in ("rows", "columns"):
                first = data.draw(st.integers(1, newest))
                last = data.draw(st.integers(first, newest))
                is_net = role == "rows" and data.draw(st.booleans())
                deduplication = Deduplication.NET_CHANGES if is_net else Deduplication.NONE
                changes = {"starting": first, "ending": last, "deduplication": deduplication}
                for more in (changes, {"shape": Shape.STATE, "at": last}):
                    whole = request(root, **more)
                    token = issuer.token(role=role)
                    served = rows_of(replace(whole, log=None, server=address, token=token))
                    if role == "rows":
                        found = rows_of(replace(whole, where="value > 1"))
                    else:
                        assert not any("value" in row for row in served)
                        found = [
                            {name: value for name, value in row.items() if name != "value"}
                            for row in rows_of(whole)
                            # Of a change of what is hidden alone nothing is told.
                            if not row.get("_change_type", "").startswith("update")
                        ]
                    assert shown(served, is_net=is_net) == shown(found, is_net=is_net)


def shown(rows: list[dict[str, Any]], *, is_net: bool) -> list[str]:
    """Return rows in any order; net changes without the place of a last change that may be out of sight."""
    hidden = ("_commit_version", "_commit_timestamp", "_position") if is_net else ()
    return sorted(repr({key: row[key] for key in row if key not in hidden}) for row in rows)
