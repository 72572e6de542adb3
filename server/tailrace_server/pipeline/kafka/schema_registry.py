"""A schema registry, and the frame of a message, which names its schema.

::

    0x00 | id of the schema: 4 bytes, big-endian | body

The body is Avro in binary form, or JSON if the schema is a JSON schema. Every process has one client for each
registry, and asks it once for each schema.

Source: Confluent documentation, Schema Registry, wire format.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.source import SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_T = TypeVar("_T")

BODY_AT: Final = 5
"""Place of the body in a framed message."""
_DEFAULTS: Final = {"timeout": 10, "max.retries": 0}
"""Settings of the client: it would wait without limit. The ingest makes new attempts itself."""
_NUMBERS: Final = frozenset(
    (
        *("timeout", "cache.capacity", "cache.latest.ttl.sec"),
        *("max.retries", "retries.wait.ms", "retries.max.wait.ms"),
    )
)
_SCHEMAS_MAX: Final = 1_000
"""Maximum number of cached schemas."""


class UnreadableMessage(ValueError):
    """A message cannot be decoded; the text is the reason in the quarantine."""


def framed(message: bytes) -> tuple[int, bytes]:
    """Return the id of a message's schema, and its body.

    Raises:
        UnreadableMessage: The message has no frame.
    """
    if message[:1] != b"\0" or len(message) < BODY_AT:
        raise UnreadableMessage("the message does not begin with 0 and the id of a schema")
    return int.from_bytes(message[1:BODY_AT], "big"), message[BODY_AT:]


@lru_cache(maxsize=8)
def registry_of(url: str, settings: tuple[tuple[str, str], ...]) -> SchemaRegistry:
    """Return this process's client of a registry; the same for the same arguments.

    Raises:
        InvalidRequest: As `SchemaRegistry`.
    """
    return SchemaRegistry(url, dict(settings))


class SchemaRegistry:
    """A client of one registry. Threads may share it."""

    def __init__(self, url: str, settings: dict[str, str]) -> None:
        """Store the settings; nothing is asked yet.

        Args:
            url: Address of the registry; several are divided by commas.
            settings: Settings of confluent-kafka's client. They may be secret, so errors have no value.

        Raises:
            InvalidRequest: The client does not know a setting, or does not take its value.
        """
        # Imported only here: it has an HTTP library, and takes as long as all the rest of the ingest.
        from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

        if not all(each.strip().startswith(("http://", "https://")) for each in url.split(",")):
            raise InvalidRequest("--schema-registry: write http://HOST:PORT or https://HOST:PORT")
        try:
            self.name = f"schema registry {', '.join(map(_public, url.split(',')))}"
            typed = {key: float(v) if key in _NUMBERS else v for key, v in settings.items()}
            self._client = SchemaRegistryClient({**_DEFAULTS, **typed, "url": url})
        except (ValueError, TypeError, OSError) as error:
            text = str(error)
            for value in filter(None, (*settings.values(), url)):
                text = text.replace(value, "…")
            raise InvalidRequest(f"--registry: {text}") from None
        self._answered_error = SchemaRegistryError
        self.definition = lru_cache(_SCHEMAS_MAX)(self._definition)
        """`_definition`, which asks once for each schema."""

    def check(self) -> None:
        """Check that the registry answers.

        Raises:
            SourceUnreachable: The registry does not answer.
            SourceRefused: The registry refuses this client, or the address is not that of a registry.
        """
        self._asked(lambda client: client.get_subjects(limit=1))

    def _definition(self, number: int) -> Any:
        """Return the definition of an Avro schema as JSON values; the types it refers to are in it.

        Raises:
            SourceUnreachable: The registry does not answer.
            SourceRefused: The registry refuses this client, or has no such schema.
            UnreadableMessage: The schema is not Avro, or is damaged.
        """
        schema = self._asked(lambda client: client.get_schema(number))
        if (schema.schema_type or "AVRO") != "AVRO":
            raise UnreadableMessage(f"schema {number} is {schema.schema_type}, not Avro")
        try:
            return _whole(orjson.loads(schema.schema_str or ""), self._referred(schema), "")
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise UnreadableMessage(f"schema {number} is damaged: {error!r}") from None

    def _referred(self, schema: Schema) -> dict[str, Any]:
        """Return full name → definition of the types that a schema refers to, directly or not."""
        found: dict[str, Any] = {}
        for each in schema.references or ():
            inner = self._version(each.subject or "", each.version or 1)
            found |= self._referred(inner)
            definition = orjson.loads(inner.schema_str or "")
            found[_full_name(definition, "")] = definition
        return found

    def _version(self, subject: str, version: int) -> Schema:
        # The subject may be deleted, and messages with its schema are still there.
        return self._asked(lambda client: client.get_version(subject, version, deleted=True).schema)

    def _asked(self, call: Callable[[SchemaRegistryClient], _T]) -> _T:
        try:
            return call(self._client)
        except self._answered_error as error:
            text = f"{self.name}: {error.error_message} (status {error.http_status_code})"
            if error.http_status_code in (401, 403):
                text = f"{text}; check the rights, and the settings in --registry"
            elif error.http_status_code in (404, 422):
                text = f"{text}; give the registry of the producers with --schema-registry"
            else:
                raise SourceUnreachable(text) from None
            raise SourceRefused(text) from None
        except Exception as error:  # the client's HTTP library has errors of its own
            raise SourceUnreachable(f"{self.name}: {str(error) or type(error).__name__}") from None


def _public(url: str) -> str:
    """Return a URL without user and password."""
    parts = urlsplit(url.strip())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _full_name(definition: dict[str, Any], namespace: str) -> str:
    name = str(definition["name"])
    space = definition.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _whole(schema: Any, others: dict[str, Any], namespace: str) -> Any:
    """Return a definition in which each name of another schema is replaced by its definition, once.

    Args:
        schema: The definition, or a part of it.
        others: Full name → definition; each definition that is used is removed.
        namespace: The namespace of short names.
    """
    if isinstance(schema, str):
        full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        if full not in others:
            return schema
        return _whole(others.pop(full), others, "")
    if isinstance(schema, list):
        return [_whole(each, others, namespace) for each in schema]
    if "fields" in schema:
        namespace = _full_name(schema, namespace).rpartition(".")[0]
        fields = [
            {**each, "type": _whole(each["type"], others, namespace)} for each in schema["fields"]
        ]
        return {**schema, "fields": fields}
    inner = [name for name in ("type", "items", "values") if name in schema]
    return {**schema, **{name: _whole(schema[name], others, namespace) for name in inner}}
