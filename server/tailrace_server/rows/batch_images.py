"""The row images of a batch and their schemas, which some predicates read in addition to the batch's head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tailrace_server.wal.schema.restating import first_stated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.state.whole_removals import WholeRemovals


class Images(Protocol):
    """Interface to the row images of a batch, and to the schemas that the images were written with."""

    def after(self) -> pa.BinaryArray:
        """Return the batch's ``after`` images."""

    def before(self) -> pa.BinaryArray:
        """Return the batch's ``before`` images."""

    def is_expired(self, row: int) -> bool:
        """Return True if the images of a record are no longer retained."""

    @property
    def gone(self) -> NDArray[np.bool_] | None:
        """Mask of the records whose images are no longer retained; None: all images are retained."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[Sequence[Schema], NDArray[np.int64]]:
        """Return the schemas that versions were written with, and each version's index among these schemas."""

    def stated(self) -> Mapping[int, Column]:
        """Return column id → the column as the source first declared it (not as inferred from values)."""

    @property
    def whole_removals(self) -> WholeRemovals:
        """The versions in which the images of removed rows are known to have every column."""


class _NoImages:
    """Images of a batch whose reader must not need any; every access is an assertion error."""

    def after(self) -> pa.BinaryArray:
        raise AssertionError("the predicate reads heads only")

    def before(self) -> pa.BinaryArray:
        raise AssertionError("the predicate reads heads only")

    def is_expired(self, row: int) -> bool:
        raise AssertionError("the predicate reads heads only")

    @property
    def gone(self) -> NDArray[np.bool_] | None:
        raise AssertionError("the predicate reads heads only")

    def schema_of(self, version: int) -> Schema:
        raise AssertionError("the predicate reads heads only")

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[Sequence[Schema], NDArray[np.int64]]:
        raise AssertionError("the predicate reads heads only")

    def stated(self) -> Mapping[int, Column]:
        raise AssertionError("the predicate reads heads only")

    @property
    def whole_removals(self) -> WholeRemovals:
        raise AssertionError("the predicate reads heads only")


NO_IMAGES: Final = _NoImages()
"""Images for calls of predicates that read heads only."""


class WrittenSchemas(Protocol):
    """Interface to the schemas of a log; ``LogView`` and ``PinnedTable`` implement it."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[list[Schema], NDArray[np.int64]]:
        """Return the schemas that versions were written with, and each version's index among these schemas."""

    def schemas(self) -> Iterator[Schema]:
        """Yield all schemas of the log, oldest first."""

    @property
    def whole_removals(self) -> WholeRemovals:
        """The versions in which the images of removed rows are known to have every column."""


@dataclass(frozen=True, slots=True)
class BatchImages:
    """The images of one batch, for predicates that select by columns or by conditions on values."""

    body: Callable[[str], pa.BinaryArray]
    """Function that returns the images named ``before`` or ``after``; it may read them from the log."""
    written: WrittenSchemas
    """The schemas of the log that the batch belongs to."""
    gone: NDArray[np.bool_] | None = None
    """Mask of the records whose images are no longer retained; None: all images are retained."""

    def after(self) -> pa.BinaryArray:
        """Return the batch's ``after`` images."""
        return self.body("after")

    def before(self) -> pa.BinaryArray:
        """Return the batch's ``before`` images."""
        return self.body("before")

    def is_expired(self, row: int) -> bool:
        """Return True if the images of a record are no longer retained."""
        return self.gone is not None and bool(self.gone[row])

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""
        return self.written.schema_of(version)

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[list[Schema], NDArray[np.int64]]:
        """Return the schemas that versions were written with, and each version's index among these schemas."""
        return self.written.schemas_of(versions)

    def stated(self) -> Mapping[int, Column]:
        """Return column id → the column as the source first declared it (not as inferred from values)."""
        return first_stated(self.written.schemas())

    @property
    def whole_removals(self) -> WholeRemovals:
        """The versions in which the images of removed rows are known to have every column."""
        return self.written.whole_removals
