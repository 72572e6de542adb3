"""How fast does one log reach many subscribers, beside RabbitMQ streams on the same work in the same run?

::

    log of captures ──▶ tailrace ──▶ 1, 10, 50 raw subscribers    stream ──▶ RabbitMQ ──▶ 1, 10, 50 raw readers
    one commit      ──▶ tailrace ──▶ the same, attached before    Publish … ──▶ RabbitMQ ──▶ the same, attached

Payloads are as large as our captures on the wire. RabbitMQ is written and read by its stream protocol, the
fastest that it has: a thousand entries a publication, ten chunks of credit a reader. Both keep a log in files;
we alone sync it, and check CRCs as we read. Each server has the first core alone, subscribers and writers
the second; nobody decodes. Live, RabbitMQ hands on what it takes in while it takes it
in, so its rate is at most its writer's; ours has a commit that becomes visible as a whole. A server's CPU
includes taking it in.

It does not show latency nor filters, which RabbitMQ's streams have none of in this version.

Needs ``rabbitmq-server`` (Debian: ``apt-get install rabbitmq-server``).
"""

from __future__ import annotations

from bench._beside import beside
from bench._harness import rabbitmq_readers, result
from bench._rabbitmq import MISSING, Connection, rabbitmq
from bench.one_log_hundred_subscribers import CAPTURES, rates


def rabbitmq_rates(streams: int, size: int, *, is_live: bool) -> tuple[float, float]:
    """Return entries a second and server CPU µs a delivery."""
    entries = CAPTURES[streams]
    payload = b"x" * size
    with rabbitmq() as server:
        writer = Connection(int(server.address))
        writer.create()
        if not is_live:
            writer.publish(entries, payload)
        before = server.cpu_s()
        with rabbitmq_readers(server.address, streams, entries, live=is_live) as process:
            if is_live:
                writer.publish(entries, payload)
            report = result(process)
        writer.close()
        return rates(report, server.cpu_s() - before)


def main() -> None:
    """Measure and print."""
    if MISSING:
        raise SystemExit("rabbitmq-server is missing: apt-get install rabbitmq-server")
    beside("RabbitMQ", rabbitmq_rates)


if __name__ == "__main__":
    main()
