"""The GraphQL side of one catalog: its schema, newest first, and operations run against it.

A schema is made again when the schema of the log has changed, in a thread, once for all requests meanwhile, at
most once a second. Types of rows that have not changed are shared with the schema before. An entity type takes
some 10 ms and 200 KiB, so the schema of a catalog with very many has those that documents name, as they come.
Documents and what is compiled of them belong to the schema that they were validated against: a subscription
keeps the one that it began with.

The size of an answer is bounded and counted while the answer is made, since a short document can request much.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from graphql import ExecutionResult, execute
from graphql.execution import Executor
from graphql.type import GraphQLResolveInfoHelpers

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.api import requests
from tailrace_server.api.graphql import schema as schemas
from tailrace_server.api.graphql.arguments import STARTS, wish_of
from tailrace_server.api.graphql.documents import DocumentCache, is_subscription
from tailrace_server.api.graphql.errors import DocumentRefused, field_error
from tailrace_server.api.graphql.names import words_in
from tailrace_server.api.graphql.resolvers import Context
from tailrace_server.grants.principal import IN_PROCESS, Peer
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable
    from collections.abc import Set as AbstractSet

    from graphql import GraphQLError, OperationDefinitionNode

    from tailrace_server.api.graphql.catalog_schema import CatalogSchema
    from tailrace_server.api.graphql.documents import Document
    from tailrace_server.api.graphql.names import CatalogNames
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.wal.state.view import LogView


_FIELD_BYTES: Final = 200
"""Of a field beside its text, while the answer is made."""


_REBUILD_S: Final = 1.0
"""A schema is made at most once in so long: changes that come faster are shown together."""

_WHOLE_TYPES_MAX: Final = 250
"""Up to so many entity types the schema of a catalog has all of them, whatever documents name."""
_SHOWN_TYPES_MAX: Final = 2_000
"""Up to so many, a document that reads the schema gets all of it: 20 s and 400 MB the first time."""
_SHOW_ALL: Final = frozenset({"Query", "Subscription", "possibleTypes"})
"""Names by which a document that reads types meets all entity types."""

_VALUES_AT_ONCE: Final = 2_000
"""Values of one list that are looked at on the event loop, in a few milliseconds."""


_ANSWER_KEPT_BYTES: Final = 4 << 20
"""Largest answer about a schema that is kept for the next who asks."""


_PARTS_MAX: Final = 64
"""Schemas that are kept of one catalog: of more kinds of grants, some are made anew when they are asked for."""


class AnswerTooLarge(BaseException):
    """Ends an execution at once; as an ordinary exception it would become an error of each further field."""

    def __init__(self, bytes_max: int) -> None:
        """Keep the limit."""
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def refusal(self) -> InvalidRequest:
        """Return the text of the caller's error."""
        return InvalidRequest(
            f"the answer takes more than {self.bytes_max} bytes of memory, the limit "
            f"(graphql_answer_bytes), {_FIELD_BYTES} for each field; ask for less at once"
        )


def bounded(bytes_max: int) -> Callable[..., Any]:
    """Return a middleware for one execution.

    Raises:
        AnswerTooLarge: From the resolver with which the answer is larger than the limit.
    """
    left = bytes_max

    def resolve(following: Callable[..., Any], source: Any, info: Any, **arguments: Any) -> Any:
        nonlocal left
        value = following(source, info, **arguments)
        left -= _FIELD_BYTES
        if isinstance(value, str | bytes | msgspec.Raw):
            left -= len(bytes(value)) if isinstance(value, msgspec.Raw) else len(value)
        if left < 0:
            raise AnswerTooLarge(bytes_max)
        return value

    return resolve


@dataclass(frozen=True, slots=True)
class Asked:
    """A GraphQL request: ``{"query": …, "variables": {…}, "operationName": …}``."""

    query: str
    variables: dict[str, Any]
    operation_name: str | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation of a valid document, ready to run."""

    document: Document
    operation: OperationDefinitionNode
    asked: Asked
    caller: Principal

    @property
    def is_subscription(self) -> bool:
        """True if the operation is a subscription."""
        return is_subscription(self.operation)


@dataclass(frozen=True, slots=True)
class Live:
    """A compiled subscription, begun."""

    subscription: Subscription
    key: str
    """Response key of its field."""
    signalled: bool
    """True if the client asked for acknowledgement and heartbeats."""


class _Executor(Executor[Any]):
    """graphql-core's executor without its reference cycle, which would keep the context and the schema."""

    @property
    def async_helpers(self) -> GraphQLResolveInfoHelpers:
        """Return what is bound to this object; made anew each time, as it is asked for once a field."""
        return GraphQLResolveInfoHelpers(gather=self.gather_async_work, track=self.track_async_work)

    @async_helpers.setter
    def async_helpers(self, _: GraphQLResolveInfoHelpers) -> None:
        """Keep nothing."""


def _key_of(view: LogView) -> Hashable:
    return view.opening, view.schema_of(view.published).id, view.part


class _GrantedSchema:
    """The GraphQL schema of the granted part of a catalog, shared by all callers with the same grants."""

    def __init__(self, granted: Hashable) -> None:
        self.granted = granted
        self.key: Hashable = None
        self.names: CatalogNames | None = None
        """The names of all entity types of the catalog, for the schema that ``key`` identifies."""
        self.built: CatalogSchema | None = None
        self.built_at = 0.0
        """Loop time at which the schema was made."""
        self.building = asyncio.Lock()


class GraphqlCatalog:
    """Operations on one catalog's path."""

    def __init__(self, engine: Engine, settings: HttpSettings, name: str, documents: DocumentCache):
        """Bind to a catalog by name; whether there is one shows at the first operation."""
        self.engine = engine
        self.settings = settings
        self.name = name
        self.documents = documents
        self._parts: dict[Hashable, _GrantedSchema] = {}
        """By what of the catalog's schema is granted, those that were asked for last behind."""
        self._reading_schema = asyncio.Lock()
        self._schema_answer: tuple[Document, str | None, bytes] | None = None
        """The document and operation that asked for the schema last, and the answer."""

    async def schema(self, caller: Principal, document: str = "") -> tuple[Hashable, CatalogSchema]:
        """Return identity and schema as the catalog is now, for a caller.

        Args:
            caller: The one whose grants count.
            document: The text that is read by it. Of very many entity types, the schema has those named there.

        Raises:
            CatalogUnknown: There is none.
            InvalidRequest: The document needs more entity types than one schema may have.
        """
        while True:
            part = self._part((await self.engine.view(caller, self.name)).part)
            async with part.building:
                # The view is asked for inside the lock, and again after the wait: who waited gets the newest.
                view = await self.engine.view(caller, self.name)
                if part.built is not None and _key_of(view) != part.key:
                    wait_s = part.built_at + _REBUILD_S - asyncio.get_running_loop().time()
                    await asyncio.sleep(max(0.0, wait_s))
                    view = await self.engine.view(caller, self.name)
                if view.part != part.granted:
                    continue  # the policy has changed meanwhile, and this schema is for others
                key = _key_of(view)
                found = view.schema_of(view.published)
                asked = None if self.name == SYSTEM_CATALOG else found
                if key != part.key or part.names is None:
                    part.names = await asyncio.to_thread(schemas.catalog_names, asked)
                stems = _stems_for(document, part.names, part.built if key == part.key else None)
                if key != part.key or part.built is None or not stems <= part.built.stems:
                    earlier = [each for each in view.schemas() if each.id < found.id]
                    part.built = await asyncio.to_thread(
                        schemas.build, asked, earlier, part.built, (part.names, stems)
                    )
                    part.built_at = asyncio.get_running_loop().time()
                    self.documents.forget(part.key)
                    self._schema_answer = None
                    part.key = key
                return key, part.built

    def _part(self, granted: Hashable) -> _GrantedSchema:
        """Return the schema of those who are granted a part of the catalog; of many, some are forgotten."""
        found = self._parts.pop(granted, None) or _GrantedSchema(granted)
        self._parts[granted] = found
        if len(self._parts) > _PARTS_MAX:
            oldest = next(iter(self._parts))
            self.documents.forget(self._parts.pop(oldest).key)
        return found

    async def prepare(self, asked: Asked, caller: Principal) -> Prepared:
        """Return the operation that a request of a caller asks for.

        Raises:
            DocumentRefused: The document is not valid here.
            InvalidRequest: It lacks the operation, names too many entity types, or has too many criteria
                in a variable.
        """
        key, built = await self.schema(caller, _names_of(asked))
        document = await self.documents.get(key, built, asked.query)
        # One that was made anew meanwhile, and that nobody asks for again, would keep its schema.
        if all(key != part.key for part in self._parts.values()):
            self.documents.forget(key)
        operation = document.operation(asked.operation_name)
        document.refuse_excess(operation, asked.variables, self.engine.settings.criteria)
        return Prepared(document, operation, asked, caller)

    async def execute(self, prepared: Prepared, peer: Peer = IN_PROCESS) -> bytes:
        """Return the response of a query, as JSON.

        Raises:
            DocumentRefused: A variable of the wrong type.
            InvalidRequest: The answer is larger than an answer may be.
        """
        document = prepared.document
        if not document.reads_schema_only(prepared.operation):
            context = self._context(prepared, peer)
            with context.pages:
                if _has_many(prepared.asked.variables):
                    # Reading the variables takes long. Nothing runs yet that needs the event loop.
                    async with self.engine.turns.many_keys:
                        found = await asyncio.to_thread(self._run, prepared, context)
                else:
                    found = self._run(prepared, context)
                try:
                    return encoded(found if isinstance(found, ExecutionResult) else await found)
                except AnswerTooLarge as error:
                    raise error.refusal() from None
        # 1. A schema that many ask for is read once. Of variables nothing is kept.
        name = prepared.asked.operation_name
        async with self._reading_schema:
            kept = self._schema_answer
            if kept is not None and kept[0] is document and kept[1] == name:
                return kept[2]
            # 2. It never waits, and of a large schema it is long work: one at a time, in a thread.
            answer = await asyncio.to_thread(self._schema_read, prepared)
            if not prepared.asked.variables and len(answer) <= _ANSWER_KEPT_BYTES:
                self._schema_answer = document, name, answer
            return answer

    def _schema_read(self, prepared: Prepared) -> bytes:
        found = self._run(prepared, self._context(prepared))
        assert isinstance(found, ExecutionResult)
        return encoded(found)

    def _run(
        self, prepared: Prepared, context: Context
    ) -> ExecutionResult | Awaitable[ExecutionResult]:
        document = prepared.document
        try:
            return execute(
                document.built.core,
                document.node,
                context_value=context,
                variable_values=prepared.asked.variables,
                operation_name=prepared.asked.operation_name,
                executor_class=_Executor,
                middleware=(bounded(self.settings.graphql_answer_bytes),),
            )
        except AnswerTooLarge as error:
            raise error.refusal() from None

    async def begin(
        self,
        prepared: Prepared,
        peer: Peer,
        *,
        as_events: bool = False,
        after: str | None = None,
    ) -> Live:
        """Begin a subscription of a peer by its compiled selection.

        Args:
            prepared: The operation.
            peer: The client's end of the connection.
            as_events: Whether its frames are events, or else payloads.
            after: The cursor to resume behind; it overrides any start that the document names.

        Raises:
            TailraceError: What is wrong with what it asks for.
        """
        document, variables = prepared.document, prepared.asked.variables
        many = _has_many(variables)
        if many:
            # 100,000 keys take graphql-core 0.1 s, for which the event loop would serve nobody.
            async with self.engine.turns.many_keys:
                values = await asyncio.to_thread(document.coerced, prepared.operation, variables)
        else:
            values = document.coerced(prepared.operation, variables)
        selection, field, arguments = document.compiled(prepared.operation, values)
        if after is not None:
            arguments = {name: value for name, value in arguments.items() if name not in STARTS}
            arguments["after"] = after
        scope = document.built.scopes[field]
        condition = document.built.condition(scope.rows_of, arguments)
        read = partial(
            wish_of,
            arguments,
            scope,
            selection.bodies,
            None if condition is None else condition.tree,
            criteria_max=self.engine.settings.criteria,
        )
        wish = await asyncio.to_thread(read) if many else read()
        with nullcontext() if condition is None else condition.told():
            codec = selection.events if as_events else selection.codec
            subscription = await requests.open_subscription(
                self.engine, prepared.caller, self.name, wish, codec=codec, peer=peer
            )
        return Live(subscription, selection.key, bool(arguments.get("signals")))

    def _context(self, prepared: Prepared, peer: Peer = IN_PROCESS) -> Context:
        built = prepared.document.built
        return Context(self.engine, self.settings, self.name, built, prepared.caller, peer)


def asked_of(value: object) -> Asked:
    """Parse a GraphQL request; unknown members are ignored.

    Raises:
        InvalidRequest: The value is not a GraphQL request.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("a GraphQL request is an object with a query")
    query, variables, name = (value.get(each) for each in ("query", "variables", "operationName"))
    if not isinstance(query, str):
        raise InvalidRequest("query: must be a document as a text")
    if not isinstance(variables, dict | None):
        raise InvalidRequest("variables: must be an object")
    if not isinstance(name, str | None):
        raise InvalidRequest("operationName: must be a text")
    if not isinstance(value.get("extensions"), dict | None):
        raise InvalidRequest("extensions: must be an object")
    return Asked(query, variables or {}, name)


def _names_of(asked: Asked) -> str:
    """Return a text with all names of a request: ``__type`` may take its name from a variable."""
    texts = (each for each in asked.variables.values() if isinstance(each, str))
    return " ".join((asked.query, *texts))


def _stems_for(document: str, named: CatalogNames, built: CatalogSchema | None) -> AbstractSet[str]:
    """Return the stems of the entity types that a schema needs for a document, those of one that is built too.

    Raises:
        InvalidRequest: There are too many for one schema.
    """
    count = len(named.stems)
    if count <= _WHOLE_TYPES_MAX:
        return named.stems.keys()
    words = words_in(document)
    if "__schema" in words or ("__type" in words and words & _SHOW_ALL):
        if count > _SHOWN_TYPES_MAX:
            raise InvalidRequest(
                f"the document reads the whole schema; the catalog has {count:,} entity types, and "
                f"introspection shows up to {_SHOWN_TYPES_MAX:,}: read the types of one by __type(name: …), "
                "the columns of all by the field schema, or use a principal that is granted fewer"
            )
        return named.stems.keys()
    wanted = named.stems_in(words)
    if len(wanted) > _WHOLE_TYPES_MAX:
        raise InvalidRequest(
            f"the document names {len(wanted):,} entity types; in a catalog with {count:,} it may name "
            f"{_WHOLE_TYPES_MAX}: use several documents"
        )
    # What other documents named stays, so that two clients do not take each other's schema away.
    known: AbstractSet[str] = frozenset() if built is None else built.stems
    both = wanted | known
    return both if len(both) <= _WHOLE_TYPES_MAX or wanted <= known else wanted


def _has_many(value: object) -> bool:
    """Return whether a list anywhere in the variables is long."""
    if isinstance(value, list):
        return len(value) > _VALUES_AT_ONCE or any(map(_has_many, value))
    return isinstance(value, dict) and any(map(_has_many, value.values()))


def as_refusal(errors: list[GraphQLError]) -> Exception:
    """Return the error for an operation that did not begin."""
    for error in errors:
        if isinstance(error.original_error, TailraceError):
            return error.original_error
    return DocumentRefused(errors) if errors else InvalidRequest("the operation did not begin")


def encoded(result: ExecutionResult) -> bytes:
    """Return a result as JSON.

    Raises:
        DocumentRefused, TailraceError: The operation was not executed.
    """
    if result.errors and result.errors[0].path is None:
        raise as_refusal(result.errors)
    return msgspec.json.encode(response(result))


def response(result: ExecutionResult) -> dict[str, Any]:
    """Return a result as the object that is sent to the client."""
    out: dict[str, Any] = {"data": result.data}
    if result.errors:
        out["errors"] = [field_error(each) for each in result.errors]
    return out
