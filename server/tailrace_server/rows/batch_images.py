"""The part of a batch that predicates read beside its head: images and their schemas."""

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
    """Gives a predicate what the head does not hold: row images and schemas."""

    def after(self) -> pa.BinaryArray:
        """Return the batch's ``after`` images."""

    def before(self) -> pa.BinaryArray:
        """Return the batch's ``before`` images."""

    def is_expired(self, row: int) -> bool:
        """Return whether a record has no image any more."""

    @property
    def gone(self) -> NDArray[np.bool_] | None:
        """True if each record has no image any more; None: all have theirs."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[Sequence[Schema], NDArray[np.int64]]:
        """Return the schemas that versions were written with, and for each version which of them."""

    def stated(self) -> Mapping[int, Column]:
        """Return, by id, each column as it was first stated."""

    @property
    def whole_removals(self) -> WholeRemovals:
        """True if the images of removed rows are known to be whole."""


class _NoImages:
    """Stands for images where no predicate may ask for them."""

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
"""For predicates that read heads only."""


class WrittenSchemas(Protocol):
    """Knows the schemas that versions were written with, as a view does."""

    def schema_of(self, version: int) -> Schema:
        """Return that of a version."""

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[list[Schema], NDArray[np.int64]]:
        """Return those of some versions, and for each version which of them."""

    def schemas(self) -> Iterator[Schema]:
        """Yield all of the log, oldest first."""

    @property
    def whole_removals(self) -> WholeRemovals:
        """True if the images of removed rows are known to be whole."""


@dataclass(frozen=True, slots=True)
class BatchImages:
    """The images of one batch for a predicate with columns or conditions."""

    body: Callable[[str], pa.BinaryArray]
    """Returns the images of a name, ``before`` or ``after``; may read them from the log."""
    written: WrittenSchemas
    gone: NDArray[np.bool_] | None = None
    """True if each record has no image any more; None: all have theirs."""

    def after(self) -> pa.BinaryArray:
        """Return the batch's ``after`` images."""
        return self.body("after")

    def before(self) -> pa.BinaryArray:
        """Return the batch's ``before`` images."""
        return self.body("before")

    def is_expired(self, row: int) -> bool:
        """Return whether a record has no image any more."""
        return self.gone is not None and bool(self.gone[row])

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""
        return self.written.schema_of(version)

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[list[Schema], NDArray[np.int64]]:
        """Return the schemas that versions were written with, and for each version which of them."""
        return self.written.schemas_of(versions)

    def stated(self) -> Mapping[int, Column]:
        """Return, by id, each column as it was first stated."""
        return first_stated(self.written.schemas())

    @property
    def whole_removals(self) -> WholeRemovals:
        """True if the images of removed rows are known to be whole."""
        return self.written.whole_removals
