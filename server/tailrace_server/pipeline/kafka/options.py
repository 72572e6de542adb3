"""The options of ``tailrace ingest kafka``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import (
    FLAG,
    READING,
    RUNNING,
    OptionForm,
    one_of,
    option,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.pipeline.kafka.schema_registry import SchemaRegistry

FORMATS: Final = ("debezium-json", "debezium-avro", "cdcv2", "json")
_OURS: Final = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
}
"""Settings on which correctness depends: offsets are in the log, and a lost one must be an error."""
_DEFAULTS: Final = {
    "client.id": "tailrace",
    "log_level": "0",  # errors are reported by the errors of the ingest
    # Partitions are assigned, so no group is joined, and its offsets are neither read nor written.
    "group.id": "tailrace",
}
_EXAMPLES: Final = {
    "--kafka": "security.protocol=SASL_SSL",
    "--registry": "basic.auth.user.info=USER:PASSWORD",
}


def _topics(flag: str, texts: list[str]) -> tuple[str, ...]:
    for each in texts:
        try:
            re.compile(each)
        except re.error as error:
            raise InvalidRequest(f"{flag} {each!r}: the pattern cannot be read: {error}") from None
    return tuple(texts)


def _settings(flag: str, texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in texts or ():
        key, separator, value = (part.strip() for part in each.partition("="))
        if not (key and separator):
            # The text may be a secret, so it is not repeated.
            example = _EXAMPLES[flag]
            raise InvalidRequest(f"{flag}: write KEY=VALUE, such as {example}")
        if key in _OURS or key in ("bootstrap.servers", "metadata.broker.list", "url"):
            raise InvalidRequest(f"{flag} {key}: the ingest sets this itself; leave it out")
        found[key] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """The options of the topics and of the connection to their brokers."""

    bootstrap: str = option(
        "--bootstrap",
        "Brokers to connect to first.",
        text("HOST:PORT,…"),
        environment="TAILRACE_KAFKA_BOOTSTRAP",
    )
    topics: tuple[str, ...] = option(
        "--topic",
        "Topic, or a pattern that begins with ^, such as '^shop[.]'; repeat for more.",
        OptionForm(kind=list[str], parse=_topics, metavar="TOPIC"),
    )
    client: Mapping[str, str] = option(
        "--kafka",
        "Setting of librdkafka, such as security.protocol=SASL_SSL; repeat for more. The variable has "
        "several, with spaces between them.",
        OptionForm(kind=list[str] | None, parse=_settings, metavar="KEY=VALUE"),
        factory=dict,
        environment="TAILRACE_KAFKA",
    )
    """May have secrets: print no value of it."""
    format: str = option(
        "--format", "Format of the messages.", one_of(FORMATS, "FORMAT"), FORMATS[0]
    )
    schema_registry: str | None = option(
        "--schema-registry",
        "Schema registry that has the schemas of the messages.",
        text("URL"),
        None,
        environment="TAILRACE_SCHEMA_REGISTRY",
    )
    """May have a password."""
    registry: Mapping[str, str] = option(
        "--registry",
        "Setting of confluent-kafka's registry client, such as basic.auth.user.info=USER:PASSWORD; "
        "repeat for more. The variable has several, with spaces between them.",
        OptionForm(kind=list[str] | None, parse=_settings, metavar="KEY=VALUE"),
        factory=dict,
        environment="TAILRACE_REGISTRY",
    )
    """May have secrets, too."""
    accept_gaps: bool = option(
        "--accept-gaps",
        "Continue behind messages that the brokers have deleted before they were read.",
        FLAG,
        False,
        panel=READING,
    )
    batch_rows: int = option(
        "--batch-rows",
        "Number of waiting messages from which Spark reads them, in batches of that size.",
        whole(1),
        200_000,
        panel=RUNNING,
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings of a consumer, in the names of librdkafka."""
        return {**_DEFAULTS, **self.client, **_OURS, "bootstrap.servers": self.bootstrap}

    def client_of_registry(self) -> SchemaRegistry:
        """Return this process's client of the registry.

        Raises:
            InvalidRequest: No registry is given, or the client does not take a setting.
        """
        from tailrace_server.pipeline.kafka.schema_registry import registry_of

        if not self.schema_registry:
            raise InvalidRequest("this format needs --schema-registry URL")
        return registry_of(self.schema_registry, tuple(sorted(self.registry.items())))
