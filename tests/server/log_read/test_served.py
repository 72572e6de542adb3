"""Reads through a server are those of the log itself, under the server's grants."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.cursor import Cursor
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    CursorAhead,
    EntityTypeUnknown,
    InvalidRequest,
    NotPermitted,
    PositionCompacted,
    TailraceError,
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
from tailrace_server.filters.tree import ConditionRefused
from tailrace_server.log_read.plan import plan, read_part
from tailrace_server.log_read.request import Deduplication, ReadRequest, Shape
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.upkeep.retention import trim
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
        batches = [batch for part in planned.parts for batch in read_part(part)]
    except InvalidRequest as error:
        return type(error)
    assert all(batch.schema.equals(planned.schema) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    if asked.shape is Shape.STATE or asked.deduplication is not Deduplication.NONE:
        rows.sort(key=repr)
    elif asked.shape is Shape.CHANGES:
        # The rows that a truncate removes are in no particular order.
        groups = [[*group] for _, group in groupby(rows, lambda row: row["_position"])]
        rows = [
            row
            for group in groups
            for row in (sorted(group, key=repr) if is_delete(group) else group)
        ]
    return planned.schema, planned.schema.metadata, planned.first, planned.last, rows


def is_delete(group: list[dict[str, Any]]) -> bool:
    return all(row["_change_type"] == "delete" for row in group)


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
        row for part in plan(asked).parts for batch in read_part(part) for row in batch.to_pylist()
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
                changes: dict[str, Any] = {
                    "starting": first,
                    "ending": last,
                    "deduplication": deduplication,
                }
                state: dict[str, Any] = {"shape": Shape.STATE, "at": last}
                for more in (changes, state):
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


def change(key: str, value: int) -> list[Mutation]:
    return [Mutation("order", key, after=b'{"id":"%s","value":%d}' % (key.encode(), value))]


def test_a_server_that_is_away_is_named_with_its_address() -> None:
    with pytest.raises(TransportError, match=r"cannot reach 127\.0\.0\.1:1: .*; start it"):
        read_log(None, "shop", "order", server="127.0.0.1:1")


def test_a_read_that_fits_no_log_is_refused_as_by_the_log(log_root: Path) -> None:
    write(log_root, [change("1", 1), change("1", 2)])
    uuid = open_catalog(log_root, "shop").view.uuid
    other = replace(Cursor.past(uuid, Position(2, 0)), catalog_uuid=UUID(int=1))
    wrong: dict[type[TailraceError], dict[str, Any]] = {
        EntityTypeUnknown: {"entity_type": "orders"},
        CatalogReplaced: {"starting": other},
        InvalidRequest: {"starting": 5},
        CursorAhead: {"ending": replace(Cursor.past(uuid, Position(9, 0)), commit_timestamp=1)},
        ConditionRefused: {"where": "values > 1"},
    }
    with serving(log_root) as address:
        for kind, more in wrong.items():
            asked = request(log_root, **more)
            for each in (asked, replace(asked, log=None, server=address)):
                with pytest.raises(kind):
                    plan(each)
        with pytest.raises(CatalogUnknown, match="shop"):
            read_log(None, "shp", "order", server=address)


def test_a_start_that_is_gone_is_refused_with_the_oldest_position(log_root: Path) -> None:
    write(log_root, [change("1", each) for each in range(4)])
    with serving(log_root) as address:
        planned = plan(replace(request(log_root, starting=2), log=None, server=address))
    trim(log_root / "shop", 4, 0)
    with serving(log_root, address=address):
        with pytest.raises(PositionCompacted) as gone:
            [*planned.reader()]
        assert gone.value.oldest == Position(4, 0)
        with pytest.raises(PositionCompacted):
            read_log(None, "shop", "order", starting=2, server=address)


@pytest.mark.slow
def test_a_read_continues_when_its_server_comes_back(log_root: Path) -> None:
    write(log_root, [change(str(key), key) for key in range(300)])
    expected = read_log(log_root, "shop", "order").read_all()
    with ExitStack() as first:
        address = first.enter_context(serving(log_root))
        reader = read_log(None, "shop", "order", server=address)
        batches = [reader.read_next_batch()]
        first.close()
        with serving(log_root, address=address):
            batches += [*reader]
    assert sum(map(len, batches)) == len(expected)
    assert pa.Table.from_batches(batches).equals(expected)


@pytest.mark.slow
def test_only_who_is_granted_a_table_reads_it(
    issuer: TokenIssuer, log_root: Path, tmp_path: Path
) -> None:
    write(log_root, [change("1", 1)])
    with serving(log_root, guarded(issuer, tmp_path)) as address:
        asked = replace(request(log_root), log=None, server=address)
        with pytest.raises(Unauthenticated):
            plan(asked)
        token = issuer.token(role="other")
        with pytest.raises(Unauthenticated) as wrong:
            plan(replace(asked, token=f"{token}x"))
        with pytest.raises(NotPermitted):
            plan(replace(asked, token=token))
        with pytest.raises(NotPermitted, match="'item' is not granted"):
            plan(replace(asked, entity_type="item", token=issuer.token(role="rows")))
        assert len(rows_of(replace(asked, token=issuer.token(role="all")))) == 2
    assert token not in f"{wrong.value} {replace(asked, token=token)!r} {plan!r}"


@pytest.mark.slow
def test_tls_that_does_not_fit_is_an_error_with_its_cause(log_root: Path, tmp_path: Path) -> None:
    write(log_root, [change("1", 1)])
    authority = Authority()
    certificate, key = authority.server().write(tmp_path)
    ca = authority.write(tmp_path)
    tls = TlsFiles(TransportSecuritySettings(tls_certificate=certificate, tls_key=key))
    with serving(log_root, tls=tls) as address:
        asked = {"server": address, "catalog": "shop", "entityType": "order"}
        assert rows_of(ReadRequest.of(asked | {"tlsCa": str(ca)}))
        with pytest.raises(TlsFailed, match="not trusted here"):
            plan(ReadRequest.of(asked | {"tls": "true"}))
        with pytest.raises(TlsFailed, match="speaks TLS"):
            plan(ReadRequest.of(asked))
    with serving(log_root) as address, pytest.raises(TlsFailed, match="does not speak TLS"):
        plan(ReadRequest.of(asked | {"server": address, "tlsCa": str(ca)}))
