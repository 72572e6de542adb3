"""Errors of Kafka as errors of a source, with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.source import SourceLost, SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.errors import TailraceError

_REFUSED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    )
)
"""Codes of errors that a retry does not help against."""


class SourceCompacted(SourceLost):
    """The brokers have deleted messages that the log lacks: their retention was shorter than the standstill."""

    code = "SOURCE_COMPACTED"

    def __init__(self, partition: str, wanted: int, oldest: int) -> None:
        """Store the partition, the first offset that the log lacks, and the oldest offset that is left."""
        super().__init__(
            f"{partition} begins at offset {oldest}, but the catalog needs offset {wanted}: the brokers "
            f"have deleted what is between. To continue without these messages, run with "
            "--accept-gaps. To lose none, take a new snapshot with the connector, and read it into a "
            "new catalog. A longer retention.ms or retention.bytes prevents this"
        )
        self.partition = partition
        self.wanted = wanted
        self.oldest = oldest

    def figures(self) -> dict[str, str]:
        """Return the partition, the wanted and the oldest offset."""
        return {
            "partition": self.partition,
            "wanted": str(self.wanted),
            "oldest": str(self.oldest),
        }


def is_refusal(error: KafkaError) -> bool:
    """Return True if the brokers refuse this client, so that a retry does not help."""
    return error.code() in _REFUSED


def source_error(error: KafkaError, servers: str, said: KafkaError | None = None) -> TailraceError:
    """Return the error of a source for an error of librdkafka.

    Args:
        error: The error of a call.
        servers: The brokers, for the message.
        said: The last error that librdkafka reported by itself; it names the cause of a time-out.
    """
    cause = error if said is None else said
    text = f"{servers}: {cause.str()}"
    if is_refusal(error) or is_refusal(cause):
        return SourceRefused(f"{text}; check the rights, and the settings in --kafka")
    return SourceUnreachable(text)


def settings_error(error: KafkaError, given: Mapping[str, str]) -> InvalidRequest:
    """Return the error for settings that librdkafka does not take; it has no value, which may be a secret."""
    text = str(error.str())
    key = max((key for key in given if key in text), key=len, default="")
    for value in filter(None, given.values()):
        text = text.replace(f'"{value}"', '"…"')
    return InvalidRequest(f"--kafka {key}: {text}" if key else f"--kafka: {text}")
