"""GraphQL documents: parsed, measured and validated once, then stored in a bounded cache.

A document is measured before validation, because the cost of validation grows with the square of its size. A
fragment counts each time it is spread, but is measured only once: a few lines can spread to billions of fields.
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
"""Number of faults after which validation stops."""
_CRITERIA: Final = "Criteria"
"""Name of the input type of one criteria."""
_VARIANTS_MAX: Final = 64
"""Maximum number of compiled selections of one document; directives with variables cause several."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A subscription's selection, compiled to codecs."""

    codec: SelectionCodec
    events: SelectionEventsCodec
    """The codec for event streams."""
    key: str
    """Response key of the subscription field."""
    bodies: frozenset[str]
    """Names of the bodies that the selection needs."""


@dataclass(slots=True)
class Document:
    """A document that is valid for one schema."""

    built: CatalogSchema
    node: DocumentNode
    operations: Mapping[str, OperationDefinitionNode]
    fragments: Mapping[str, FragmentDefinitionNode]
    conditions: tuple[str, ...]
    """Variables in directives: they decide which fields are selected."""
    _variants: dict[tuple[Any, ...], Compiled] = field(default_factory=dict)

    def operation(self, name: str | None) -> OperationDefinitionNode:
        """Return the operation with a name; without a name, the only operation.

        Raises:
            InvalidRequest: There is no operation with this name, or no name and several operations.
        """
        if name:
            found = self.operations.get(name)
            if found is None:
                raise InvalidRequest(f"the document has no operation named {name[:60]!r}")
            return found
        if len(self.operations) != 1:
            raise InvalidRequest(
                "the document has several operations; select one with operationName"
            )
        return next(iter(self.operations.values()))

    def reads_schema_only(self, operation: OperationDefinitionNode) -> bool:
        """Return True if all fields of an operation are introspection, including the fields of fragments."""
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
        """Refuse a variable with too many criteria, before they are coerced.

        Raises:
            InvalidRequest: A variable has more than ``criteria_max`` criteria.
        """
        for definition in operation.variable_definitions or ():
            value = variables.get(definition.variable.name.value)
            if isinstance(value, list) and _named(definition.type) == _CRITERIA:
                refuse_excess(len(value), criteria_max)

    def coerced(
        self, operation: OperationDefinitionNode, variables: Mapping[str, Any]
    ) -> VariableValues:
        """Return the coerced values of a request's variables. May be called in any thread.

        Raises:
            DocumentRefused: A variable has the wrong type.
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
        """Return the codecs, the field name and the arguments of a subscription with its variables.

        Raises:
            DocumentRefused: An argument has the wrong type.
            InvalidRequest: Directives exclude the only field.
        """
        # 1. Read the arguments of this request. They define what is subscribed to, but not the form of a frame.
        collector = Collector(self.built.core, self.fragments, values)
        root = root_of(operation, collector)
        name = root.node.name.value
        assert self.built.core.subscription_type is not None
        definition = self.built.core.subscription_type.fields[name]
        try:
            arguments = get_argument_values(definition, root.node, values)
        except GraphQLError as error:
            raise DocumentRefused([error]) from None
        # 2. Find the codec. The form of a frame depends on the operation and on the variables in @skip and
        #    @include. Each combination is compiled once. Clients choose the combinations, so their number is
        #    bounded.
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
    """Counts of documents and subscriptions since the server started."""

    cached: int
    """Requests whose document was in the cache."""
    validated: int
    """Documents that were validated and accepted."""
    refused: int
    """Documents that were refused."""
    compiled: int
    """Subscriptions that were opened."""


class DocumentCache:
    """The documents of a server; evicts the least recently used ones. Used only on the event loop."""

    def __init__(self, settings: HttpSettings) -> None:
        """Start with an empty cache."""
        self._settings = settings
        self._documents: OrderedDict[tuple[Hashable, str], Document] = OrderedDict()
        self._bytes = 0
        """Total length of the cached documents, in characters."""
        self._turn = asyncio.Lock()
        """Held while a document is parsed and validated."""
        self.hits = self.misses = self.refused = self.compiled = 0

    def forget(self, key: Hashable) -> None:
        """Drop the documents of a replaced schema, so that the schema can be freed."""
        for full_key in [each for each in self._documents if each[0] == key]:
            del self._documents[full_key]
            self._bytes -= _size(full_key[1])

    def statistics(self) -> DocumentStatistics:
        """Return the counts since the server started."""
        return DocumentStatistics(
            self.hits, self.misses - self.refused, self.refused, self.compiled
        )

    def __len__(self) -> int:
        """Return the number of cached documents."""
        return len(self._documents)

    async def get(self, key: Hashable, built: CatalogSchema, text: str) -> Document:
        """Return a document that is valid for a schema, from the cache or parsed now.

        Args:
            key: Identity of the schema.
            built: The schema.
            text: The text of the document.

        Raises:
            DocumentRefused: The document does not parse, exceeds a limit, or is not valid; the error has
                locations.
        """
        documents, full_key = self._documents, (key, text)
        found = documents.get(full_key)
        if found is not None:
            documents.move_to_end(full_key)
            self.hits += 1
            return found
        limit = self._settings.graphql_document_bytes
        if len(text) > limit or _size(text) > limit:
            self.misses += 1
            self.refused += 1
            raise DocumentRefused(
                [GraphQLError(f"the document is longer than {limit} bytes, the limit")]
            )
        # Read one document at a time: if a thousand clients send the same document, it is read once, and a
        # flood of documents occupies only one thread. The document may have been cached while this request
        # waited.
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
        self._bytes += _size(text)
        while self._bytes > self._settings.graphql_documents_bytes and len(documents) > 1:
            (_, dropped), _ = documents.popitem(last=False)
            self._bytes -= _size(dropped)
        return found


def _size(text: str) -> int:
    """Return the bytes of a document in UTF-8."""
    return len(text.encode(errors="surrogatepass"))


def read(built: CatalogSchema, text: str, settings: HttpSettings) -> Document:
    """Parse, measure and validate a document.

    Raises:
        DocumentRefused: The document does not parse, exceeds a limit, or is not valid.
    """
    try:
        return _read(built, text, settings)
    except GraphQLError as error:
        raise DocumentRefused([error]) from None
    except RecursionError:  # In the parser, or while following fragments within fragments.
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
    # Check the limits before validation, whose cost grows with the square of the size. Each operation is
    # measured by itself, because only one of them runs.
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
    """Remove the backward links between tokens: as reference cycles they keep a dropped document alive."""
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
    """Measures selection sets, with fragments replaced by their fields."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode]) -> None:
        self._fragments = fragments
        self._sizes: dict[str, _Size] = {}

    def of(self, selections: SelectionSetNode | None) -> _Size:
        """Return the size of a selection set; zero without one."""
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
            # Store a size before measuring: the recursion into a fragment that spreads itself ends here.
            # Validation refuses such a fragment later.
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
    """Return the names of the variables in directives, sorted."""
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
    """Return the name of a type without list and non-null wrappers."""
    while isinstance(node, ListTypeNode | NonNullTypeNode):
        node = node.type
    assert isinstance(node, NamedTypeNode)
    return node.name.value


def is_subscription(operation: OperationDefinitionNode) -> bool:
    """Return True if an operation is a subscription."""
    return operation.operation is OperationType.SUBSCRIPTION
