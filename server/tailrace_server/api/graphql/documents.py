"""Documents: parsed, measured and validated once, then kept in a bounded cache.

They are measured before validation, whose cost grows with the square of the document. Fragments count as often
as they are spread, but each is measured once: a few lines can spread to billions of fields.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from graphql import (
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    InlineFragmentNode,
    ListTypeNode,
    NamedTypeNode,
    NonNullTypeNode,
    NoSchemaIntrospectionCustomRule,
    OperationDefinitionNode,
    OperationType,
    parse,
    specified_rules,
    validate,
)
from graphql.execution.values import get_argument_values, get_variable_values

from tailrace.errors import InvalidRequest
from tailrace_server.api.graphql.codec import SelectionCodec, SelectionEventsCodec
from tailrace_server.api.graphql.errors import DocumentRefused
from tailrace_server.api.graphql.selection import Collector, root_of, selection_of
from tailrace_server.api.requests import refuse_excess

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from graphql import DocumentNode, SelectionSetNode, TypeNode
    from graphql.execution.values import VariableValues

    from tailrace_server.api.graphql.catalog_schema import CatalogSchema
    from tailrace_server.api.settings import HttpSettings

_FAULTS_MAX: Final = 20
_CRITERIA: Final = "Criteria"
"""Name of the input type."""
_VARIANTS_MAX: Final = 64
"""Compiled selections kept of one document; directives with variables make more than one."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A subscription whose selection is a codec."""

    codec: SelectionCodec
    events: SelectionEventsCodec
    """The same for event streams."""
    key: str
    """Response key of its field."""
    bodies: frozenset[str]


@dataclass(slots=True)
class Document:
    """A valid document of one schema."""

    built: CatalogSchema
    node: DocumentNode
    operations: Mapping[str, OperationDefinitionNode]
    fragments: Mapping[str, FragmentDefinitionNode]
    conditions: tuple[str, ...]
    """Variables that decide about fields: named by a directive."""
    _variants: dict[tuple[Any, ...], Compiled] = field(default_factory=dict)

    def operation(self, name: str | None) -> OperationDefinitionNode:
        """Return the operation to run.

        Raises:
            InvalidRequest: No such one, or several and no name.
        """
        if name:
            found = self.operations.get(name)
            if found is None:
                raise InvalidRequest(f"the document has no operation named {name[:60]!r}")
            return found
        if len(self.operations) != 1:
            raise InvalidRequest("the document has several operations; operationName says which")
        return next(iter(self.operations.values()))

    def reads_schema_only(self, operation: OperationDefinitionNode) -> bool:
        """Return True if every field of an operation is introspection, those of its fragments included."""
        spread: set[str] = set()
        waiting = [operation.selection_set]
        while waiting:
            for each in waiting.pop().selections:
                match each:
                    case FieldNode():
                        if not each.name.value.startswith("__"):
                            return False
                    case InlineFragmentNode():
                        waiting.append(each.selection_set)
                    case FragmentSpreadNode():
                        if each.name.value not in spread:
                            spread.add(each.name.value)
                            waiting.append(self.fragments[each.name.value].selection_set)
        return True

    def refuse_excess(
        self, operation: OperationDefinitionNode, variables: Mapping[str, Any], criteria_max: int
    ) -> None:
        """Refuse a variable with too many criteria, before each of them is looked at.

        Raises:
            InvalidRequest: As `api.requests.refuse_excess`, which is asked of arguments later.
        """
        for definition in operation.variable_definitions or ():
            value = variables.get(definition.variable.name.value)
            if isinstance(value, list) and _named(definition.type) == _CRITERIA:
                refuse_excess(len(value), criteria_max)

    def coerced(
        self, operation: OperationDefinitionNode, variables: Mapping[str, Any]
    ) -> VariableValues:
        """Return the values of a request's variables; any thread may call it.

        Raises:
            DocumentRefused: One is of the wrong type.
        """
        values = get_variable_values(
            self.built.core, operation.variable_definitions or (), dict(variables)
        )
        if isinstance(values, list):
            raise DocumentRefused(values)
        return values

    def compiled(
        self, operation: OperationDefinitionNode, values: VariableValues
    ) -> tuple[Compiled, str, dict[str, Any]]:
        """Return codec, field and arguments of a subscription, for the values of its variables.

        Raises:
            DocumentRefused: An argument of the wrong type.
            InvalidRequest: Directives leave it without a field.
        """
        # 1. The arguments of this request. They choose what to subscribe to, not the form of a frame.
        collector = Collector(self.built.core, self.fragments, values)
        root = root_of(operation, collector)
        name = root.node.name.value
        assert self.built.core.subscription_type is not None
        definition = self.built.core.subscription_type.fields[name]
        try:
            arguments = get_argument_values(definition, root.node, values)
        except GraphQLError as error:
            raise DocumentRefused([error]) from None
        # 2. The form of a frame depends on the operation and on the variables that @skip and @include name.
        #    For each combination the codec is made once. Clients choose them, so their number is bounded.
        name_of = "" if operation.name is None else operation.name.value
        variant = (name_of, *(values.coerced.get(each) for each in self.conditions))
        if variant not in self._variants:
            if len(self._variants) >= _VARIANTS_MAX:
                self._variants.clear()
            selection = selection_of(root, self.built, collector)
            codec = SelectionCodec(selection)
            self._variants[variant] = Compiled(
                codec, SelectionEventsCodec(codec), selection.key, selection.bodies
            )
        return self._variants[variant], name, arguments


@dataclass(frozen=True, slots=True)
class DocumentStatistics:
    """The figures of documents and subscriptions since the server began."""

    cached: int
    """Documents that were known."""
    validated: int
    refused: int
    compiled: int
    """Subscriptions begun."""


class DocumentCache:
    """The documents of a server, least recently used ones out first; lives on the event loop."""

    def __init__(self, settings: HttpSettings) -> None:
        """Begin empty."""
        self._settings = settings
        self._documents: OrderedDict[tuple[Hashable, str], Document] = OrderedDict()
        self._bytes = 0
        self._turn = asyncio.Lock()
        self.hits = self.misses = self.refused = self.compiled = 0

    def forget(self, key: Hashable) -> None:
        """Drop the documents of a schema that is not the newest any more, and the schema with them."""
        for full_key in [each for each in self._documents if each[0] == key]:
            del self._documents[full_key]
            self._bytes -= len(full_key[1])

    def statistics(self) -> DocumentStatistics:
        """Return the figures since it began."""
        return DocumentStatistics(
            self.hits, self.misses - self.refused, self.refused, self.compiled
        )

    def __len__(self) -> int:
        """Return how many are held."""
        return len(self._documents)

    async def get(self, key: Hashable, built: CatalogSchema, text: str) -> Document:
        """Return a document of a schema.

        Args:
            key: Identity of the schema.
            built: The schema.
            text: The document.

        Raises:
            DocumentRefused: It does not parse, is above a limit, or is not valid; says where.
        """
        documents, full_key = self._documents, (key, text)
        found = documents.get(full_key)
        if found is not None:
            documents.move_to_end(full_key)
            self.hits += 1
            return found
        limit = self._settings.graphql_document_bytes
        if len(text) > limit or len(text.encode(errors="surrogatepass")) > limit:
            self.misses += 1
            self.refused += 1
            raise DocumentRefused(
                [GraphQLError(f"the document is longer than {limit} bytes, the limit")]
            )
        # One document at a time: a page that a thousand clients open is read once, and a flood of documents
        # occupies one thread. So the cache is asked again inside the lock.
        async with self._turn:
            if full_key in documents:
                self.hits += 1
                return documents[full_key]
            self.misses += 1
            try:
                found = await asyncio.to_thread(read, built, text, self._settings)
            except DocumentRefused:
                self.refused += 1
                raise
        documents[full_key] = found
        self._bytes += len(text)
        while self._bytes > self._settings.graphql_documents_bytes and len(documents) > 1:
            (_, dropped), _ = documents.popitem(last=False)
            self._bytes -= len(dropped)
        return found


def read(built: CatalogSchema, text: str, settings: HttpSettings) -> Document:
    """Parse, measure and validate a document.

    Raises:
        DocumentRefused: What is wrong with it.
    """
    try:
        return _read(built, text, settings)
    except GraphQLError as error:
        raise DocumentRefused([error]) from None
    except RecursionError:  # of the parser, or of what follows fragments into each other
        raise DocumentRefused([GraphQLError("the document is nested too deeply")]) from None


def _read(built: CatalogSchema, text: str, settings: HttpSettings) -> Document:
    node = parse(text, max_tokens=settings.graphql_tokens)
    _unlink_tokens(node)
    operations = {
        each.name.value if each.name else "": each
        for each in node.definitions
        if isinstance(each, OperationDefinitionNode)
    }
    fragments = {
        each.name.value: each
        for each in node.definitions
        if isinstance(each, FragmentDefinitionNode)
    }
    # Limits come before validation, whose cost grows with the square of the document; each operation counts by
    # itself, since only one of them runs.
    measure = _Measure(fragments)
    for operation in operations.values():
        _refuse_excess(measure.of(operation.selection_set), settings)
    rules = list(specified_rules)
    if not settings.graphql_introspection:
        rules.append(NoSchemaIntrospectionCustomRule)
    faults = validate(built.core, node, rules, max_errors=_FAULTS_MAX)
    if not faults and not operations:
        faults = [GraphQLError("the document has no operation")]
    if faults:
        raise DocumentRefused(faults)
    return Document(built, node, operations, fragments, _conditions(node))


def _unlink_tokens(node: DocumentNode) -> None:
    """Let each token know the next one only: linked both ways, a document that is dropped stays in memory."""
    token = None if node.loc is None else node.loc.start_token
    while token is not None:
        token.prev = None
        token = token.next


@dataclass(frozen=True, slots=True)
class _Size:
    depth: int
    fields: int
    aliases: int


class _Measure:
    """Sizes of selection sets with their fragments spread."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode]) -> None:
        self._fragments = fragments
        self._sizes: dict[str, _Size] = {}

    def of(self, selections: SelectionSetNode | None) -> _Size:
        """Return the size of a selection set; nothing for none."""
        depth = fields = aliases = 0
        for node in () if selections is None else selections.selections:
            if isinstance(node, FragmentSpreadNode):
                inner = self._fragment(node.name.value)
            else:
                assert isinstance(node, FieldNode | InlineFragmentNode)
                inner = self.of(node.selection_set)
            own = isinstance(node, FieldNode)
            depth = max(depth, inner.depth + own)
            fields += inner.fields + own
            aliases += inner.aliases + (isinstance(node, FieldNode) and node.alias is not None)
        return _Size(depth, fields, aliases)

    def _fragment(self, name: str) -> _Size:
        found = self._sizes.get(name)
        if found is None:
            # Noted before it is measured: a fragment that spreads itself ends here, and validation refuses it.
            self._sizes[name] = _Size(0, 0, 0)
            fragment = self._fragments.get(name)
            found = self.of(None if fragment is None else fragment.selection_set)
            self._sizes[name] = found
        return found


def _refuse_excess(size: _Size, settings: HttpSettings) -> None:
    for name, found, limit in (
        ("fields deep", size.depth, settings.graphql_depth),
        ("fields, fragments spread", size.fields, settings.graphql_fields),
        ("aliases", size.aliases, settings.graphql_aliases),
    ):
        if found > limit:
            raise DocumentRefused([GraphQLError(f"the document has more than {limit} {name}")])


def _conditions(node: DocumentNode) -> tuple[str, ...]:
    """Return the variables that directives name."""
    found: set[str] = set()

    def collect(each: Any) -> None:
        for directive in getattr(each, "directives", None) or ():
            for argument in directive.arguments or ():
                if argument.value.kind == "variable":
                    found.add(argument.value.name.value)
        inner = getattr(each, "selection_set", None)
        for selection in () if inner is None else inner.selections:
            collect(selection)

    for definition in node.definitions:
        collect(definition)
    return tuple(sorted(found))


def _named(node: TypeNode) -> str:
    """Return the name of a type, without what is around it."""
    while isinstance(node, ListTypeNode | NonNullTypeNode):
        node = node.type
    assert isinstance(node, NamedTypeNode)
    return node.name.value


def is_subscription(operation: OperationDefinitionNode) -> bool:
    """Return True if an operation is a subscription."""
    return operation.operation is OperationType.SUBSCRIPTION
