"""docs/audit.md has every event of the audit, with every field."""

from __future__ import annotations

from tailrace_server.access.audit_trail import AuditLine
from tools.audit import PAGE, kinds, main, rows


def test_the_page_is_made_of_the_code() -> None:
    main(["--check"])


def test_every_field_of_every_event_is_on_the_page() -> None:
    page = PAGE.read_text()
    every: tuple[type[AuditLine], ...] = (AuditLine, *kinds())
    for kind in every:
        inherited = () if kind is AuditLine else AuditLine.__struct_fields__
        own = [name for name in kind.__struct_fields__ if name not in inherited]
        assert sorted(row.split("`")[1] for row in rows(kind)) == sorted(own), kind
        if kind is not AuditLine:
            assert f"### `{kind.event()}`" in page


def test_no_field_could_hold_a_credential() -> None:
    fields = {name for kind in kinds() for name in kind.__struct_fields__}
    assert not fields & {"token", "key", "secret", "password", "authorization", "cookie", "ticket"}
