"""The server process: the engine with its faces, from the first port to the last subscription's end.

Start::

    log root fit to serve? ─▶ ports listen, ─▶ engine opens the catalogs, ─▶ faces accept,
                              "starting"       the encoder is loaded         "serving"

Stop, on SIGTERM or Ctrl-C, in the order below. If it takes too long, or at a second signal, stop_deadline.py
ends the process. The server also stops, with exit status 1, if a required audit cannot be written for too
long::

    at once                       /health answers 503, new subscriptions are refused
                                  every subscription ends with ServerStopping and its resume cursor
    until 5/8 of the deadline     clients receive these messages, and pending requests are answered
    then                          every remaining connection is cut; the engine closes with its threads
    15/16 of the deadline         the process ends, whatever hangs

Everything that prevents the start is detected before the first subscriber is accepted, and raised as
`CannotStart` in one sentence. Clients that connect before the faces accept must wait, and /health answers
``starting``. When the server is ready, it logs the event ``serving`` with the addresses that it listens on.
With ``--log-format json`` (the default if stderr is no terminal) the event is one JSON object: a program that
started the server on port 0 reads the address from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import structlog
import uvloop
from grpc.aio import init_grpc_aio  # type: ignore[attr-defined]  # the stubs leave it out

from tailrace_server import process
from tailrace_server.access.admissions import RecordedAdmissions
from tailrace_server.access.audit import Audit
from tailrace_server.access.configured import Access
from tailrace_server.access.quotas import Quotas
from tailrace_server.api.face_watch import FaceWatch
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.api.operator import RecentLines
from tailrace_server.api.server import metrics
from tailrace_server.api.server.http import HttpFace, bind
from tailrace_server.api.transport_security.startup import check_exposure, tls_files
from tailrace_server.collector import CYCLES
from tailrace_server.engine.engine import Engine
from tailrace_server.errors import CannotStart
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_root import check_log_root
from tailrace_server.machine_code import loader
from tailrace_server.process import hand_over_soon, raise_descriptor_limit, schedule
from tailrace_server.statistics_log import StatisticsReporter
from tailrace_server.stop_deadline import StopDeadline
from tailrace_server.units import Address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tailrace_server.access.door import Door
    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.settings import ServerSettings

_READERS_SHARE: Final = 5 / 8
"""Fraction of the stop deadline in which clients receive their last messages and pending requests are
answered."""
_LOADED_ON_DEMAND: Final = ("numpy.ma", "strawberry.federation.schema_directives")
"""Modules that numpy and strawberry import only when they first need them."""
_log = structlog.get_logger("tailrace.server")


def run(settings: ServerSettings) -> int:
    """Serve until a signal stops the server; return the exit status of the process.

    Raises:
        CannotStart: A setting, the log root or an address is not usable.
    """
    if settings.log is None:
        raise CannotStart("no log root: give --log ROOT, TAILRACE_LOG, or `log` in a --config file")
    check_log_root(settings.log)
    check_exposure(
        {"--grpc": settings.grpc, "--http": settings.http},
        settings.transport_security,
        identified=_identified(settings),
    )
    schedule(settings.scheduling)
    hand_over_soon()
    raise_descriptor_limit()
    try:
        return uvloop.run(_run(settings))
    except* CannotStart as group:
        raise group.exceptions[0] from None


def _identified(settings: ServerSettings) -> bool:
    """Return True if callers must prove an identity."""
    return settings.transport_security.tls_client_ca is not None or settings.access.asks


async def _run(settings: ServerSettings) -> int:
    # Keep grpc.aio initialized as long as the process lives. If it shuts down with the last server, it reads
    # freed memory when connections still wait to write (docs/adr/0033).
    init_grpc_aio()
    stopping = asyncio.Event()
    with (
        closing(Audit(settings.auditing)) as audit,
        StopDeadline(settings.stop_deadline_s, stopping),
    ):
        await serve(settings, stopping, audit)
    return 1 if audit.has_given_up else 0


async def serve(settings: ServerSettings, stopping: asyncio.Event, audit: Audit) -> None:
    """Serve a log root until ``stopping`` is set, then stop in the order above.

    Raises:
        CannotStart: An address cannot be bound.
    """
    with RecentLines() as lines:
        await _serve(settings, stopping, audit, lines)


async def _serve(
    settings: ServerSettings, stopping: asyncio.Event, audit: Audit, lines: RecentLines
) -> None:
    assert settings.log is not None
    tls = tls_files(settings.transport_security)
    quotas = Quotas(settings.quotas)
    engine = Engine(settings.log, settings.engine, RecordedAdmissions(audit, quotas))
    access = Access(settings.access, settings.transport_security.tls_client_ca, audit, quotas)
    proxies = settings.transport_security.proxies
    grpc = GrpcServer(engine, settings.grpc_face, tls=tls, door=access.door, proxies=proxies)
    statistics = partial(engine.statistics, ANONYMOUS)
    registry = metrics.registry(statistics, grpc.statistics, version=version("tailrace"))
    watch = FaceWatch(settings.probe_interval_s)
    metrics.register(registry, metrics.faces, watch.statistics)
    if tls is not None:
        metrics.register(registry, metrics.tls, tls.statistics)
    metrics.register(registry, metrics.named, lambda: engine.named.watched(ANONYMOUS))
    metrics.register(registry, metrics.audit, audit.statistics)
    metrics.register(registry, metrics.quotas, lambda: quotas)
    metrics.register(registry, metrics.issuers, access.key_ages)
    http = _http(engine, registry, settings, watch, lines, tls, access.door)
    watch.add(grpc)
    if http is not None:
        watch.add(http)
    async with asyncio.TaskGroup() as faces:
        # 1. Both faces listen before the catalogs are open: health reports that, and other clients wait.
        port = await _listen(grpc, settings.grpc)
        addresses = {"grpc": str(Address(settings.grpc.host, port)), "http": None}
        answering: asyncio.Task[None] | None = None
        if http is not None:
            answering = faces.create_task(http.serve(), name="http")
            addresses["http"] = str(http.address)
        _log.info("starting", **addresses, pid=os.getpid())
        # 2. While the catalogs open, load what the first subscriber would otherwise wait for.
        warming = faces.create_task(asyncio.to_thread(_warm_up), name="warm up")
        async with engine, asyncio.TaskGroup() as tasks:
            await warming
            # 3. Objects that exist now live until the end, so the garbage collector need not visit them again.
            process.freeze_collector()
            await grpc.accept()
            if http is not None:
                http.accept()
            _log.info(
                "serving",
                **addresses,
                log_root=str(settings.log),
                catalogs=[each.name for each in engine.catalogs(ANONYMOUS)],
                pid=os.getpid(),
            )
            reporter = StatisticsReporter(statistics)
            upkeep = [
                tasks.create_task(reporter.run(settings.log_statistics_s), name="statistics"),
                tasks.create_task(CYCLES.run(), name="collector of cycles"),
                tasks.create_task(watch.run(), name="watch of the faces"),
                tasks.create_task(access.run(engine), name="keys and who holds them"),
                tasks.create_task(audit.run(_stop), name="watch of the audit"),
            ]
            if tls is not None:
                upkeep.append(tasks.create_task(tls.run(), name="files of TLS"))
            await stopping.wait()
            readers_until = (
                asyncio.get_running_loop().time() + settings.stop_deadline_s * _READERS_SHARE
            )
            # 4. /health answers 503 first, so that a load balancer sends no clients here while subscriptions
            #    end. No listener is renewed from here on.
            for each in upkeep:
                each.cancel()
            await asyncio.wait(upkeep)
            if http is not None:
                http.stopping = True
            ended = statistics().subscriptions
            engine.stop_subscriptions()
            # 5. Both faces deliver their last messages at the same time, under one deadline.
            async with asyncio.TaskGroup() as last:
                last.create_task(grpc.stop(_left(readers_until)), name="stop gRPC")
                if http is not None:
                    last.create_task(http.drain(_left(readers_until)), name="drain HTTP")
            # 6. HTTP closes last: until here it answered /health and /metrics. Its pending requests have the
            #    same deadline, and the engine still serves them.
            if http is not None and answering is not None:
                http.stop(_left(readers_until))
                await asyncio.wait((answering,))
            reporter.report()
    _log.info("stopped", subscriptions_ended=ended)


def _warm_up() -> None:
    """Load modules and machine code that the first subscriber would wait for; any thread may call it."""
    for each in _LOADED_ON_DEMAND:
        import_module(each)
    loader.prepare()


def _stop() -> None:
    """Stop the server by a signal to this process, so that the stop deadline applies."""
    signal.raise_signal(signal.SIGTERM)


def _left(until: float) -> float:
    """Return the seconds left until a time of the event loop; 0 if it has passed."""
    return max(0.0, until - asyncio.get_running_loop().time())


def _http(
    engine: Engine,
    registry: CollectorRegistry,
    settings: ServerSettings,
    watch: FaceWatch,
    lines: RecentLines,
    tls: TlsFiles | None,
    door: Door,
) -> HttpFace | None:
    """Return the bound HTTP listener; None if it is off."""
    if settings.http is None:
        return None
    return HttpFace(
        engine,
        registry,
        settings.http,
        settings.http_faces,
        door=door,
        not_accepting=watch.not_accepting,
        lines=lines,
        accepting=False,
        tls=tls,
        proxies=settings.transport_security.proxies,
    )


async def _listen(grpc: GrpcServer, address: Address) -> int:
    """Let the gRPC face listen and return its port.

    Raises:
        CannotStart: The address is in use or does not belong to this machine.
    """
    # gRPC would refuse the address too, but it also writes a line to stderr that no log setting suppresses.
    bind(address, "--grpc").close()
    try:
        return await grpc.listen(str(address))
    except OSError as error:
        raise CannotStart(f"--grpc {address}: {error.strerror}") from error
