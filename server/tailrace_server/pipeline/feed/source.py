"""The contract between a source of whole transactions and the loop that writes them (loop.py).

A source is a generator of *items* in the order of its log::

    Transaction         becomes one version
    TransactionBatch    many of them, as columns
    PartedTransaction   one that is larger than memory
    SnapshotRows        some rows of a table as of the snapshot; only differences from the log are written
    SnapshotEnd         the end of a table's snapshot; rows of the log that it lacked are removed
    Moved               the source has reached a position; commit it now, and end a snapshot
    None                nothing has arrived for now

The log stores the *position* of an item in the commit that has its rows. After a restart the generator begins
behind this position, so each transaction is written exactly once. Positions are texts that only the source
reads.

The rows of a snapshot become visible together, with the `Moved` or `Transaction` that follows it. A source
whose snapshot was interrupted begins it again. The rows of a table that is read again between transactions
(``hidden`` is False) are visible at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    import pyarrow as pa

    from tailrace_server.wal.large_transaction import LargeTransaction
    from tailrace_server.wal.last_images import RowName
    from tailrace_server.wal.record.mutation import Mutation
    from tailrace_server.wal.schema.builder import Announced


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transaction of the source; it becomes one version."""

    mutations: Sequence[Mutation]
    """At most one for each key. A missing image before is filled in from the log."""
    position: str
    """Position behind this transaction."""
    transaction_id: str | None = None
    source_timestamp: int | None = None
    """Time at which the source committed the transaction, in microseconds since 1970."""
    columns: Mapping[str, Announced] = field(default_factory=dict)
    """Entity types whose columns are new or have changed; valid from this transaction on."""
    inserted: Collection[RowName] = ()
    """Rows that the source knows to be new, so that the log is not searched for them."""
    moved: Mapping[RowName, str] = field(default_factory=dict)
    """Rows with a new key → their old key, in which the values are that the source did not send again."""
    lead: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the version's INFRASTRUCTURE record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBatch:
    """Whole transactions as columns; each becomes one version."""

    rows: pa.RecordBatch
    """Rows as for `TransactionWriter.append_batch`, with ``transaction_id``. No value is missing."""
    versions: int
    """Number of transactions."""
    bytes: int
    """Size of the images."""
    position: str
    """Position behind the last transaction."""
    source_timestamp: int
    """Time at which the source committed the last transaction, in microseconds since 1970."""
    columns: Mapping[str, Announced] = field(default_factory=dict)
    """As for a `Transaction`; valid from the first row of the entity type on."""
    inserted: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Entity type → keys of rows that do not exist before these transactions."""


@dataclass(frozen=True, slots=True)
class PartedTransaction:
    """A transaction that is larger than memory; it becomes one version, in a commit of its own."""

    content: LargeTransaction
    position: str
    """Position behind it."""
    columns: Mapping[str, Announced]
    """As for a `Transaction`."""


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Some rows of a table as of a snapshot; they become at most one version."""

    entity_type: str
    rows: Mapping[str, bytes] | pa.RecordBatch
    """Key → image; or the same as columns ``primary_key`` and ``after``."""
    columns: Announced | None = None
    """Columns of the table; given with its first rows."""
    hidden: bool = True
    """True if readers must not see a part of the snapshot."""


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """The snapshot of a table is complete."""

    entity_type: str
    stays: Callable[[Sequence[str]], Collection[str]] | None = None
    """Returns which of the keys that the snapshot lacks are not removed; None: the snapshot was hidden, and all
    are removed."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The source has reached a position. It is durable in the log before the generator continues."""

    position: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The connection to the source failed, or is opened again; `arrivals` yields this, not the source."""


Item = (
    Transaction
    | TransactionBatch
    | PartedTransaction
    | SnapshotRows
    | SnapshotEnd
    | Moved
    | Interrupted
)


class TransactionSource(Protocol):
    """A source of whole transactions in the order of its log."""

    @property
    def name(self) -> str:
        """Name of the source; the log stores its position under this name."""

    def check(self) -> None:
        """Check that the source can be read, before the catalog is opened for it.

        Raises:
            SourceUnreachable, SourceRefused: It cannot be read.
        """

    def items(self, after: str | None) -> Generator[Item | None, None, None]:
        """Yield everything behind a position. The loop may call this again after `SourceUnreachable`.

        The generator yields None at least every half a second, and whenever all that has arrived is yielded.
        It may run in a thread of its own. The methods below are called in the same thread.
        It ends if the source has no more, or should not wait for more.

        Args:
            after: Position in the log; None: the log has none yet.

        Raises:
            SourceUnreachable: The connection failed.
            SourceLost: The source no longer has what follows the position.
        """

    def acknowledge(self, position: str) -> None:
        """Allow the source to forget everything up to a position: readers of the log can see it."""

    def lag_bytes(self) -> int | None:
        """Return how many bytes of the source's log are not acknowledged; None if this is unknown."""

    def place(self, position: str) -> int | None:
        """Return a position as a number for the metrics; None if it is not one."""


class SourceUnreachable(TailraceError):
    """The connection to the source failed or could not be opened. A retry may help."""

    code = "SOURCE_UNREACHABLE"
    retriable = True


class SourceLost(TailraceError):
    """The source no longer has the changes that follow the log's position. A new snapshot is needed."""

    code = "SOURCE_LOST"


class SourceRefused(TailraceError):
    """The source cannot be read as it is set up; the message says what to change there."""

    code = "SOURCE_REFUSED"
