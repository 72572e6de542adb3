"""What EXPLAIN says of a scan: what it reads of the log, and what it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.units import counted

if TYPE_CHECKING:
    from tailrace_server.sql.scans import StatementScan


def line_of(scan: StatementScan) -> str:
    """Return one line: the table, what of it is asked for, and how much of the log that takes.

    Raises:
        TailraceError: The log could not be read, of which this looks at heads where no key files are.
    """
    use = scan.use
    if use.changes is None:
        what = f"state of {use.entity_type} as of version {use.version}"
    else:
        first, last = use.versions.both(use.changes)
        what = f"changes of {use.entity_type}, " + (
            f"versions {first} to {last}" if first <= last else "no versions"
        )
        if use.change_types is not None:
            what += f"; {', '.join(sorted(use.change_types)) or 'none'} alone"
    keys = "all keys" if use.keys is None else counted(len(use.keys), "key")
    columns = ", ".join(scan.schema.names)
    line = f"{use.alias}: {what}; {keys}; columns {columns}"
    if use.form is not None and use.form.salt_buckets > 1:
        line += f"; {use.form.salt_buckets} scans at once"
    amount = scan.amount()
    if amount is None:
        return line
    base = "" if not amount.base else f"a base of version {amount.base} and "
    read = (
        f"reads {base}{amount.batches:,} of {counted(amount.all_batches, 'batch', 'batches')}, "
        f"at most {amount.bytes:,} of {amount.all_bytes:,} bytes"
    )
    return f"{line}; {read}"
