"""The GraphQL side of one catalog: its current GraphQL schema, and the operations that run against it.

A GraphQL schema is rebuilt when the schema of the log has changed: in a thread, once for all waiting requests,
and at most once a second. Row types that have not changed are shared with the previous schema. An entity type
costs about 10 ms and 200 KiB. So in a catalog with very many entity types, a schema contains only those that
documents have named. Documents and compiled selections belong to the schema that they were validated against,
and a subscription keeps the schema that it began with.

The size of a query's answer is bounded and counted while the answer is built, because a short document can
request a lot of data.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
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
"""Memory that is charged for each field of an answer, in addition to its text."""


_REBUILD_S: Final = 1.0
"""Minimum time between two builds of a schema, in seconds; faster changes are combined."""

_WHOLE_TYPES_MAX: Final = 250
"""A catalog with at most this number of entity types has all of them in its schema.

In a larger catalog, one document may name at most this number.
"""
_SHOWN_TYPES_MAX: Final = 2_000
"""Maximum number of entity types for introspection of a whole schema: it takes 20 s and 400 MB to build."""
_SHOW_ALL: Final = frozenset({"Query", "Subscription", "possibleTypes"})
"""Names with which introspection by ``__type`` reaches all entity types."""

_VALUES_AT_ONCE: Final = 2_000
"""Longest list that is coerced on the event loop, in a few milliseconds; a longer one takes a thread."""


_ANSWER_KEPT_BYTES: Final = 4 << 20
"""Largest introspection answer that is cached, in bytes."""


_PARTS_MAX: Final = 64
"""Maximum number of schemas cached for one catalog, one for each set of grants; further ones are rebuilt."""


class AnswerTooLarge(BaseException):
    """Raised when an answer exceeds its size limit; ends the whole execution.

    It is a BaseException, because graphql-core would turn an `Exception` into an error of the field and
    continue.
    """

    def __init__(self, bytes_max: int) -> None:
        """Store the limit in bytes."""
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def refusal(self) -> InvalidRequest:
        """Return the error that is sent to the caller."""
        return InvalidRequest(
            f"the answer takes more than {self.bytes_max} bytes of memory, the limit "
            f"(graphql_answer_bytes), at {_FIELD_BYTES} for each field; request less at once"
        )


def bounded(bytes_max: int) -> Callable[..., Any]:
    """Return a graphql-core middleware that counts the size of one answer.

    The middleware raises `AnswerTooLarge` at the field with which the answer exceeds ``bytes_max``.
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
    """A request whose document is valid, with the operation to run."""

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
    """An open subscription of a GraphQL operation."""

    subscription: Subscription
    key: str
    """Response key of the subscription field."""
    signalled: bool
    """True if the client requested acknowledgement and heartbeats (``signals: true``)."""


class _Executor(Executor[Any]):
    """graphql-core's executor without a reference cycle, which would keep context and schema in memory."""

    @property
    def async_helpers(self) -> GraphQLResolveInfoHelpers:
        """Return helpers bound to this object; they are not stored, as that would be the cycle."""
        return GraphQLResolveInfoHelpers(gather=self.gather_async_work, track=self.track_async_work)

    @async_helpers.setter
    def async_helpers(self, _: GraphQLResolveInfoHelpers) -> None:
        """Ignore the helpers that the base class assigns."""


def _key_of(view: LogView) -> Hashable:
    return view.opening, view.schema_of(view.published).id, view.part


class _GrantedSchema:
    """The GraphQL schema of the granted part of a catalog, shared by all callers with the same grants."""

    def __init__(self, granted: Hashable) -> None:
        self.granted = granted
        """The granted part of the catalog (`LogView.part`)."""
        self.key: Hashable = None
        """Identity of the built schema; None before the first build."""
        self.names: CatalogNames | None = None
        """The names of all entity types of the catalog, for the schema that ``key`` identifies."""
        self.built: CatalogSchema | None = None
        self.built_at = 0.0
        """Loop time at which the schema was built."""
        self.building = asyncio.Lock()
        """Held by the request that checks or builds the schema."""


class GraphqlCatalog:
    """The GraphQL schemas of one catalog, and its operations."""

    def __init__(self, engine: Engine, settings: HttpSettings, name: str, documents: DocumentCache):
        """Bind to a catalog by name; an unknown catalog is an error only at the first operation."""
        self.engine = engine
        self.settings = settings
        self.name = name
        self.documents = documents
        self._parts: dict[Hashable, _GrantedSchema] = {}
        """Schemas by granted part of the catalog, the most recently used last."""
        self._reading_schema = asyncio.Lock()
        """Held by the one introspection that runs."""
        self._schema_answer: tuple[Document, str | None, bytes] | None = None
        """Document, operation name and answer of the last introspection."""

    async def schema(self, caller: Principal, document: str = "") -> tuple[Hashable, CatalogSchema]:
        """Return the identity and the current GraphQL schema of the catalog for a caller.

        Args:
            caller: The principal whose grants decide which part of the catalog is visible.
            document: Text with the names that the schema must contain, if the catalog has very many entity
                types.

        Raises:
            CatalogUnknown: The catalog does not exist.
            InvalidRequest: The document needs more entity types than one schema may have.
        """
        while True:
            part = self._part((await self.engine.view(caller, self.name)).part)
            async with part.building:
                # 1. Read the view inside the lock, and again after the wait, so that every waiting request gets
                #    the newest schema.
                view = await self.engine.view(caller, self.name)
                if part.built is not None and _key_of(view) != part.key:
                    wait_s = part.built_at + _REBUILD_S - asyncio.get_running_loop().time()
                    await asyncio.sleep(max(0.0, wait_s))
                    view = await self.engine.view(caller, self.name)
                if view.part != part.granted:
                    continue  # The caller's grants have changed meanwhile: this schema is for other callers.
                key = _key_of(view)
                found = view.schema_of(view.published)
                asked = None if self.name == SYSTEM_CATALOG else found
                if key != part.key or part.names is None:
                    part.names = await asyncio.to_thread(schemas.catalog_names, asked)
                # 2. Which entity types are needed? Those of the current schema are kept.
                stems = _stems_for(document, part.names, part.built if key == part.key else None)
                if key != part.key or part.built is None or not stems <= part.built.stems:
                    # 3. Build in a thread, then forget the documents that were validated against the old
                    #    schema.
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
        """Return the schema of a part of the catalog; evict the least recently used above the limit."""
        found = self._parts.pop(granted, None) or _GrantedSchema(granted)
        self._parts[granted] = found
        if len(self._parts) > _PARTS_MAX:
            oldest = next(iter(self._parts))
            self.documents.forget(self._parts.pop(oldest).key)
        return found

    async def prepare(self, asked: Asked, caller: Principal) -> Prepared:
        """Parse and validate the document of a request, and return the requested operation.

        Raises:
            DocumentRefused: The document is not valid for the caller's schema.
            InvalidRequest: The document has no such operation or names too many entity types, or a variable has
                too many criteria.
        """
        key, built = await self.schema(caller, _names_of(asked))
        document = await self.documents.get(key, built, asked.query)
        # If the schema was rebuilt during the validation, nothing will request this document again by its key,
        # and in the cache it would keep the old schema in memory.
        if all(key != part.key for part in self._parts.values()):
            self.documents.forget(key)
        operation = document.operation(asked.operation_name)
        document.refuse_excess(operation, asked.variables, self.engine.settings.criteria)
        return Prepared(document, operation, asked, caller)

    async def execute(self, prepared: Prepared, peer: Peer = IN_PROCESS) -> bytes:
        """Return the response of a query, as JSON.

        Raises:
            DocumentRefused: A variable has the wrong type.
            InvalidRequest: The answer exceeds the limit ``graphql_answer_bytes``.
        """
        document = prepared.document
        if not document.reads_schema_only(prepared.operation):
            context = self._context(prepared, peer)
            with context.pages:
                if _has_many(prepared.asked.variables):
                    # Coercing long lists takes long, so do it in a thread. `_run` does nothing that needs the
                    # event loop.
                    async with self.engine.turns.many_keys:
                        found = await asyncio.to_thread(self._run, prepared, context)
                else:
                    found = self._run(prepared, context)
                try:
                    return encoded(found if isinstance(found, ExecutionResult) else await found)
                except AnswerTooLarge as error:
                    raise error.refusal() from None
        # 1. Introspection: the last answer is cached, as many clients send the same document. Answers that
        #    depend on variables are not cached.
        name = prepared.asked.operation_name
        async with self._reading_schema:
            kept = self._schema_answer
            if kept is not None and kept[0] is document and kept[1] == name:
                return kept[2]
            # 2. Introspection does no I/O, and takes long for a large schema: run one at a time, in a thread.
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
        """Open a subscription; its frames are encoded by the compiled selection.

        Args:
            prepared: The operation.
            peer: The client's end of the connection.
            as_events: True if frames are server-sent events, False if they are payloads of ``next`` messages.
            after: The cursor to resume after; it overrides any start in the document.

        Raises:
            TailraceError: The subscription is refused.
        """
        document, variables = prepared.document, prepared.asked.variables
        many = _has_many(variables)
        async with AsyncExitStack() as stack:
            # 1. Requests with many keys are handled one at a time, until the engine has charged the keys: until
            #    then they are in no budget. Graphql-core needs 0.1 s for 100,000 keys, so it runs in a thread.
            if many:
                await stack.enter_async_context(self.engine.turns.many_keys)
                values = await asyncio.to_thread(document.coerced, prepared.operation, variables)
            else:
                values = document.coerced(prepared.operation, variables)
            # 2. Find the compiled selection, which is the codec, and the arguments. `after` replaces any other
            #    start.
            selection, field, arguments = document.compiled(prepared.operation, values)
            if after is not None:
                arguments = {name: value for name, value in arguments.items() if name not in STARTS}
                arguments["after"] = after
            # 3. Convert the arguments to a request of the engine.
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
            # 4. Open the subscription. A wait for a version may take minutes, in which others must not wait.
            if wish.limits.wait is not None:
                await stack.aclose()
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
    """Return a text that contains all names of a request, also in variables: ``__type`` may use one."""
    texts = (each for each in asked.variables.values() if isinstance(each, str))
    return " ".join((asked.query, *texts))


def _stems_for(document: str, named: CatalogNames, built: CatalogSchema | None) -> AbstractSet[str]:
    """Return the stems of the entity types that a schema needs for a document.

    They include the entity types of the current schema ``built``, as far as the limit allows.

    Raises:
        InvalidRequest: The document needs more entity types than one schema may have.
    """
    count = len(named.stems)
    if count <= _WHOLE_TYPES_MAX:
        return named.stems.keys()
    words = words_in(document)
    if "__schema" in words or ("__type" in words and words & _SHOW_ALL):
        if count > _SHOWN_TYPES_MAX:
            raise InvalidRequest(
                f"the document reads the whole schema; the catalog has {count:,} entity types, and "
                f"introspection shows at most {_SHOWN_TYPES_MAX:,}: read the types of one entity type "
                "with __type(name: …), the columns of all with the field schema, or use a principal "
                "with fewer grants"
            )
        return named.stems.keys()
    wanted = named.stems_in(words)
    if len(wanted) > _WHOLE_TYPES_MAX:
        raise InvalidRequest(
            f"the document names {len(wanted):,} entity types; in a catalog with {count:,} it may name "
            f"at most {_WHOLE_TYPES_MAX}: use several documents"
        )
    # Keep the entity types of other documents: else two clients would replace each other's schema in turn.
    known: AbstractSet[str] = frozenset() if built is None else built.stems
    both = wanted | known
    return both if len(both) <= _WHOLE_TYPES_MAX or wanted <= known else wanted


def _has_many(value: object) -> bool:
    """Return True if the variables contain a long list at any depth."""
    if isinstance(value, list):
        return len(value) > _VALUES_AT_ONCE or any(map(_has_many, value))
    return isinstance(value, dict) and any(map(_has_many, value.values()))


def as_refusal(errors: list[GraphQLError]) -> Exception:
    """Return the error of an operation that was refused before execution."""
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
