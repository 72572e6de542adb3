"""The selection set of a subscription, compiled once: fragments are merged and directives evaluated.

::

    { a: version ...F after { id @include(if: $x) } }    fragment F on Change { cursor }
      ─▶ SelectionSet("onProductChange", (HeadField("a", "version"), HeadField("cursor", "cursor"),
                                          RowField("after", …)))

The steps are CollectFields and MergeSelectionSets of the specification (section 6.3.2), for a valid document.
Two documents with equal selections share the same encoded bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from graphql import (
    FieldNode,
    FragmentSpreadNode,
    GraphQLAbstractType,
    GraphQLIncludeDirective,
    GraphQLSkipDirective,
    InlineFragmentNode,
    get_directive_values,
)

from tailrace.errors import InvalidRequest
from tailrace_server.api.graphql.types import BODIES, HEAD, TOLD_FROM, UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphql import (
        FragmentDefinitionNode,
        GraphQLSchema,
        NameNode,
        OperationDefinitionNode,
        SelectionSetNode,
    )

    from tailrace_server.api.graphql.catalog_schema import CatalogSchema, ColumnNames
    from tailrace_server.api.graphql.column_readings import ColumnReading

_TEXTS: Final = {f"{body}Text": body for body in BODIES}


@dataclass(frozen=True, slots=True)
class TypeName:
    """A member ``__typename``."""

    key: str
    """Response key."""
    name: str
    """Name of the type."""


@dataclass(frozen=True, slots=True)
class HeadField:
    """A member that is a field of the interface `Change`."""

    key: str
    field: str


@dataclass(frozen=True, slots=True)
class BodyField:
    """A member that is a body as JSON, or as a string with its text."""

    key: str
    body: str
    as_text: bool


@dataclass(frozen=True, slots=True)
class ColumnField:
    """A column in the selection of a row."""

    key: str
    names: ColumnNames
    reading: ColumnReading


@dataclass(frozen=True, slots=True)
class RowField:
    """A member that is a body as a typed row, with its selected columns."""

    key: str
    body: str
    entity_type: str
    cells: tuple[ColumnField | TypeName, ...]


Member: TypeAlias = TypeName | HeadField | BodyField | RowField


@dataclass(frozen=True, slots=True)
class SelectionSet:
    """The compiled selection of a subscription field: the members of each payload, in order."""

    key: str
    """Response key of the subscription field."""
    members: tuple[Member, ...]

    @property
    def bodies(self) -> frozenset[str]:
        """Names of the bodies that the selection needs."""
        found = {each.body for each in self.members if isinstance(each, BodyField | RowField)}
        if any(isinstance(each, HeadField) and each.field == UNAVAILABLE for each in self.members):
            found |= {*TOLD_FROM}
        return frozenset(found)

    @property
    def identity(self) -> str:
        """Text that is equal for two selections if and only if their encoded bytes are equal."""
        return repr((self.key, tuple(map(_identity, self.members))))


def _identity(member: Member | ColumnField) -> tuple[Any, ...]:
    match member:
        case ColumnField(key, column, reading):
            return ("cell", key, column, reading.name)
        case RowField(key, body, entity_type, cells):
            return ("row", key, body, entity_type, tuple(map(_identity, cells)))
        case TypeName(key, name):
            return ("typename", key, name)
        case HeadField(key, field):
            return ("head", key, field)
        case BodyField(key, body, as_text):
            return ("body", key, body, as_text)


@dataclass(frozen=True, slots=True)
class Root:
    """The only field of a subscription operation."""

    node: FieldNode
    """The first occurrence of the field."""
    nodes: tuple[FieldNode, ...]
    """All occurrences of the field; their selections are merged."""


class Collector:
    """Collects the selected fields of one operation for one set of variables."""

    def __init__(
        self,
        schema: GraphQLSchema,
        fragments: Mapping[str, FragmentDefinitionNode],
        variables: Any,
    ) -> None:
        """Bind to a validated document; ``variables`` are graphql-core's coerced values."""
        self._schema = schema
        self._fragments = fragments
        self._variables = variables

    def fields(
        self, type_name: str, sets: Iterable[SelectionSetNode | None]
    ) -> dict[str, list[FieldNode]]:
        """Return the selected fields of an object type by response key, in order of first occurrence."""
        found: dict[str, list[FieldNode]] = {}
        visited: set[str] = set()
        for each in sets:
            if each is not None:
                self._collect(type_name, each, found, visited)
        return found

    def _collect(
        self,
        type_name: str,
        selections: SelectionSetNode,
        found: dict[str, list[FieldNode]],
        visited: set[str],
    ) -> None:
        for node in selections.selections:
            if not self._shown(node):
                continue
            match node:
                case FieldNode():
                    key = (node.alias or node.name).value
                    found.setdefault(key, []).append(node)
                case InlineFragmentNode():
                    condition = node.type_condition
                    if condition is None or self._applies(condition.name, type_name):
                        self._collect(type_name, node.selection_set, found, visited)
                case FragmentSpreadNode():
                    # The specification spreads a fragment only once in a selection set. Otherwise a few lines
                    # of fragments could select billions of fields.
                    name = node.name.value
                    if name in visited:
                        continue
                    visited.add(name)
                    fragment = self._fragments[name]
                    if self._applies(fragment.type_condition.name, type_name):
                        self._collect(type_name, fragment.selection_set, found, visited)

    def _shown(self, node: Any) -> bool:
        # Validation has refused all other directives, because the schema declares none for fields and
        # fragments.
        skip = get_directive_values(GraphQLSkipDirective, node, self._variables)
        if skip and skip["if"]:
            return False
        include = get_directive_values(GraphQLIncludeDirective, node, self._variables)
        return not include or bool(include["if"])

    def _applies(self, condition: NameNode, type_name: str) -> bool:
        if condition.value == type_name:
            return True
        wanted, actual = (self._schema.get_type(name) for name in (condition.value, type_name))
        return (
            isinstance(wanted, GraphQLAbstractType)
            and actual is not None
            and self._schema.is_sub_type(wanted, actual)
        )


def root_of(operation: OperationDefinitionNode, collector: Collector) -> Root:
    """Return the only field of a subscription operation.

    Raises:
        InvalidRequest: Directives exclude the field.
    """
    found = collector.fields("Subscription", [operation.selection_set])
    if len(found) != 1:
        raise InvalidRequest(
            "a subscription must have one field; the directives of this one leave none"
        )
    (nodes,) = found.values()
    return Root(nodes[0], tuple(nodes))


def selection_of(root: Root, built: CatalogSchema, collector: Collector) -> SelectionSet:
    """Return the compiled selection of a subscription field."""
    node = root.node
    key = (node.alias or node.name).value
    row = built.rows.get(_type_of(node.name.value))
    type_name = "CatalogChange" if row is None else _type_of(node.name.value)
    # The members of each frame are in the order in which their response keys first occur.
    members: list[Member] = []
    fields = collector.fields(type_name, [each.selection_set for each in root.nodes])
    for member_key, nodes in fields.items():
        name = nodes[0].name.value
        if name == "__typename":
            members.append(TypeName(member_key, type_name))
        elif name in HEAD:
            members.append(HeadField(member_key, name))
        # A typed row has a selection set of its own. All occurrences of the field are merged; validation has
        # made sure that this is possible.
        elif row is not None and name in ("before", "after"):
            inner = collector.fields(row.name, [each.selection_set for each in nodes])
            cells = tuple(
                TypeName(cell_key, row.name)
                if cell[0].name.value == "__typename"
                else ColumnField(cell_key, *row.fields[cell[0].name.value])
                for cell_key, cell in inner.items()
            )
            members.append(RowField(member_key, name, row.entity_type, cells))
        elif row is None and name in BODIES:
            members.append(BodyField(member_key, name, as_text=False))
        elif row is None and name in _TEXTS:
            members.append(BodyField(member_key, _TEXTS[name], as_text=True))
        else:
            raise AssertionError(f"{type_name}.{name} has no place in a frame")
    return SelectionSet(key, tuple(members))


def _type_of(field: str) -> str:
    return field.removeprefix("on")
