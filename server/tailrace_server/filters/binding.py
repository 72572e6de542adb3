"""Binding of a condition's tree to a schema: names become columns, and values get the columns' types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors.requests import nearest
from tailrace.schema import Column
from tailrace_server.filters.constants import WrongValue, border_of, family_of
from tailrace_server.filters.evaluation import (
    AllOf,
    AnyOf,
    AskedColumn,
    Compared,
    Inverted,
    Matched,
    NotNull,
    OneOf,
    RowFilter,
    pattern_of,
)
from tailrace_server.filters.tree import (
    ColumnName,
    Comparison,
    ConditionRefused,
    Constant,
    Distinction,
    Family,
    Given,
    Junction,
    Likeness,
    Membership,
    Negation,
    NullTest,
    Operator,
    Parameter,
    columns_in,
    refused,
)
from tailrace_server.typed.forms import form_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tailrace_server.filters.constants import Border
    from tailrace_server.filters.evaluation import Mask
    from tailrace_server.filters.tree import Condition, Value
    from tailrace_server.typed.forms import Form

_COMPARES: Final = {
    Family.NUMBER: "a number",
    Family.TEXT: "a text in single quotes",
    Family.BOOLEAN: "TRUE or FALSE",
    Family.DATE: "a day as '2024-02-29'",
    Family.TIME: "a time as '13:37:00'",
    Family.TIMESTAMP: "a moment as '2024-02-29T13:37:00'",
    Family.INSTANT: "a moment with its zone, as '2024-02-29T13:37:00Z'",
}
"""Family of a column → the values that it can be compared with, in words for errors."""


_OF_JSON: Final = {
    Family.NUMBER: form_of(Column("", sql_type="DECIMAL")),
    Family.TEXT: form_of(Column("", sql_type="VARCHAR")),
    Family.BOOLEAN: form_of(Column("", sql_type="BOOLEAN")),
}
"""Family of JSON values → the form in which the values of a JSON column arrive."""


def bind(
    condition: Condition,
    columns: Iterable[Column],
    parameters: Mapping[str, str],
    *,
    shown: Collection[str] | None = None,
) -> RowFilter:
    """Bind a condition to columns, so that it can be evaluated.

    Args:
        condition: The tree of the condition.
        columns: The columns of the entity type, at the version whose names the condition uses.
        parameters: Name → value, as text. Each value is converted to the type of the column that it is compared
            with.
        shown: Names of columns that an error may reveal; None: all.

    Raises:
        ConditionRefused: A column or a parameter is missing, or a value does not fit the type of its column.
    """
    # 1. Look up all names. The hint in an error may have only names that may be revealed.
    known = {column.name: column for column in columns}
    names = columns_in(condition)
    for name in names:
        if name.text not in known:
            hint = nearest(name.text, known if shown is None else {*known} & {*shown})
            raise refused(name.place, f"there is no column {name.text!r}{hint}")
    # 2. Convert the tree. A parameter that nothing uses is an error: perhaps its name is misspelt.
    binder = _Binder({name.text: form_of(known[name.text]) for name in names}, parameters)
    mask = binder.mask(condition)
    if unused := sorted(parameters.keys() - binder.used):
        raise ConditionRefused(
            f"where: no condition uses the parameter {unused[0]!r}; leave it out"
        )
    return RowFilter(tuple(known[name.text] for name in names), mask)


def _family_of_value(value: Value) -> Family | None:
    """Return the family of a value as it is written; None for NULL."""
    if isinstance(value, Constant) and value.text is None:
        return None
    return value.family or Family.TEXT


def _compared(what: str, family: Family) -> str:
    """Return the text of an error: the values that ``what`` can be compared with.

    For texts it has a hint, as a column of numbers may have been declared as text.
    """
    hint = "; if it holds numbers, declare its type for the ingest (--schema)"
    return f"{what} is compared with {_COMPARES[family]}{hint if family is Family.TEXT else ''}"


class _Binder:
    def __init__(self, forms: Mapping[str, Form], parameters: Mapping[str, str]) -> None:
        self._forms = forms
        self._parameters = parameters
        self.used: set[str] = set()

    def mask(self, condition: Condition) -> Mask:
        match condition:
            case Junction(is_and=is_and, parts=parts):
                masks = tuple(map(self.mask, parts))
                return AllOf(masks) if is_and else AnyOf(masks)
            case Negation(part=part):
                return Inverted(self.mask(part))
            case NullTest(column=column):
                return Inverted(NotNull(AskedColumn(column.text)))
            case Comparison(column=column, operator=operator, value=value):
                form, asked = self._asked(column, (value,))
                if family_of(form) is Family.BOOLEAN and operator not in (
                    Operator.EQUAL,
                    Operator.UNEQUAL,
                ):
                    raise refused(column.place, f"{column.text!r} is TRUE or FALSE, without order")
                return Compared(asked, operator, self._border(column, form, value))
            case Membership(column=column, values=values):
                form, asked = self._asked(column, values)
                return OneOf(asked, tuple(self._border(column, form, each) for each in values))
            case Distinction(column=column, value=value):
                form, asked = self._asked(column, (value,))
                border = self._border(column, form, value)
                if border is None:
                    return NotNull(AskedColumn(column.text))  # of JSON, values of any family count
                # IS DISTINCT FROM is never null: it is the negation of (IS NOT NULL AND equal).
                same = Compared(asked, Operator.EQUAL, border)
                return Inverted(AllOf((NotNull(asked), same)))
            case Likeness():
                return self._matched(condition)

    def _matched(self, likeness: Likeness) -> Mask:
        column = likeness.column
        form, asked = self._asked(column, (likeness.pattern,))
        if family_of(form) is not Family.TEXT:
            raise refused(column.place, f"{column.text!r} is not a text, as LIKE needs")
        text = self._text(likeness.pattern, Family.TEXT)
        try:
            pattern = None if text is None else pattern_of(text, likeness.escape)
        except ValueError as error:
            raise refused(likeness.pattern.place, str(error)) from None
        return Matched(asked, pattern, likeness.ignores_case)

    def _asked(self, column: ColumnName, values: Sequence[Value]) -> tuple[Form, AskedColumn]:
        """Return a column and its form for a comparison with some values."""
        # Only columns of known types can be compared; every column can be tested for NULL.
        form = self._forms[column.text]
        if not form.is_json:
            if family_of(form) is None:
                raise refused(
                    column.place,
                    f"{column.text!r} is {form.label}, which supports only IS NULL",
                )
            return form, AskedColumn(column.text)
        # A column of JSON or of an unknown type has values of any family. The values that it is compared with
        # choose one family; column values of other families count as NULL.
        families = {_family_of_value(value) for value in values} - {None}
        family = families.pop() if families else Family.TEXT
        if families or family not in _OF_JSON:
            raise refused(
                column.place,
                f"the type of {column.text!r} is unknown: compare it with numbers or texts, or with TRUE "
                "or FALSE",
            )
        return _OF_JSON[family], AskedColumn(column.text, family)

    def _border(self, column: ColumnName, form: Form, value: Value) -> Border | None:
        """Return a value as a border between the values of a column; None for NULL."""
        family = family_of(form)
        assert family is not None
        text = self._text(value, family, column.text)
        if text is None:
            return None
        try:
            return border_of(text, form)
        except WrongValue as error:
            name = f"parameter {value.name!r}: " if isinstance(value, Parameter) else ""
            raise refused(value.place, f"{name}{error}") from None

    def _text(self, value: Value, family: Family, column: str | None = None) -> str | None:
        """Check that a value fits a family, and return its text; None for NULL."""
        if isinstance(value, Parameter):
            self.used.add(value.name)
            if value.name not in self._parameters:
                raise refused(value.place, f"the parameter {value.name!r} has no value")
            if value.family not in (None, family):
                raise refused(value.place, _compared(f"{column!r}", family))
            return self._parameters[value.name]
        if isinstance(value, Given):
            if value.family not in (None, family):
                raise refused(value.place, _compared(f"{column!r}", family))
            return value.text
        written = value.family
        # A quoted text without a cast takes the type of its
        # column. Numbers are the exception: they need no quotes.
        fits = written is family or (written is None and family is not Family.NUMBER)
        if value.text is not None and not fits:
            what = "LIKE" if column is None else f"{column!r}"
            raise refused(value.place, _compared(what, family))
        return value.text
