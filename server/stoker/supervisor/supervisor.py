"""The supervisor: one asyncio loop that starts, joins, watches, restarts and drains a server's processes.

It imports no framework. It owns the listening sockets, so a frontend that dies loses no waiting connection, and it
makes every arena and doorbell, so a restarted process always gets fresh ones.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from stoker.control.frontend_messages import (
    Ask,
    AskDefault,
    AskEvents,
    AskIndex,
    AskKeys,
    AskLoad,
    AskLogs,
    AskReload,
    AskShift,
    AskTraces,
    AskUnload,
    AskWake,
    Drain,
    Refusal,
    Reply,
    Stop,
)
from stoker.control.handover_messages import Labels
from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, NotReady, NotSupported, RequestError, StokerError
from stoker.gpu.nvml import GpuReader
from stoker.keys.generation import Follower
from stoker.metrics.journal import TraceReader
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.models.available_models import tries_earlier
from stoker.residency.footprints import Footprints
from stoker.settings.server import OtlpProtocol, ServerSettings, otlp_protocol_of
from stoker.supervisor.background import Supervision, in_thread
from stoker.supervisor.catalogue import Catalogue, Events, StartUp, join_pipelines
from stoker.supervisor.device_memory import DeviceMemory
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.handover import Succession, Successor
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.recycler import Recycler
from stoker.supervisor.repository_poller import RepositoryPoller
from stoker.supervisor.residency import Residency
from stoker.supervisor.rollout import Rollout, Trials
from stoker.supervisor.tracing import Recorder, SpanMaker, TraceSettings
from stoker.system.extras import how_to_install, is_installed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection

    from stoker.errors import OperatorError
    from stoker.models.available_models import AvailableModel
    from stoker.supervisor.background import Background
    from stoker.supervisor.frontend_processes import FrontendChild, FrontendProcesses
    from stoker.supervisor.sign_in import SignInLink
    from stoker.supervisor.stock import Stock
    from stoker.supervisor.tracing import Span

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PACKAGES: Final[dict[OtlpProtocol, str]] = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}
_PERIOD_S: Final = 0.25
_SENT_SPANS: Final = 512
"""The size of a batch of spans, as in the SDK."""
_QUIET_PERIODS: Final = 120
"""Dropped spans are logged at once, and then at most once in this many periods."""


class Exporter(Protocol):
    """Sends spans."""

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; returns whether they were accepted."""

    def close(self) -> None:
        """Abort what is being sent."""


def trace_sender(
    settings: ServerSettings, environ: Mapping[str, str], metrics_fd: int, count: Callable[[int, int], None]
) -> TraceSender | None:
    """Return the sender of a server's traces; None if traces are off.

    The setting of the endpoint takes precedence. Without it, OpenTelemetry's variables are used if the SDK is
    installed: they may have been meant for other programs.
    """
    named = next((name for name in _ENDPOINTS if environ.get(name)), None)
    if settings.otlp_endpoint is None and (named is None or _declined(environ)):
        return None
    protocol = _spoken(otlp_protocol_of(environ))
    if not is_installed(_PACKAGES[protocol]):
        needs = f"OpenTelemetry's SDK: {how_to_install('otel')}"
        if settings.otlp_endpoint is not None:
            raise InvalidSettings(f"otlp_endpoint needs {needs}")
        logger.warning("%s is set, but no traces are sent; that needs %s", named, needs)
        return None
    from stoker.supervisor.otlp import OtlpExporter

    exporter = OtlpExporter(settings.otlp_endpoint, protocol)
    return TraceSender(TraceReader(metrics_fd), exporter, count, TraceSettings(settings.trace_ratio))


def _declined(environ: Mapping[str, str]) -> bool:
    """Whether the variables themselves switch traces off, or ask for a protocol that is not supported."""
    if (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return True
    if (protocol := otlp_protocol_of(environ)) not in _PACKAGES:
        logger.warning(
            "no traces are sent: the protocols of OTLP are here %s, not %s", " and ".join(_PACKAGES), protocol
        )
        return True
    return False


def _spoken(said: str) -> OtlpProtocol:
    """The protocol of the variables, if it is supported.

    Otherwise the default, because the setting asks for traces.
    """
    return "grpc" if said == "grpc" else "http/protobuf"


class TraceSender:
    """Sends the traced requests that frontends report, on a thread of its own.

    While the receiver is slow, reports stay in the rings of the frontends, which overwrite them in the end.

    Args:
        count: Told of requests whose spans were sent, and of those whose spans were not.
        settings: Which requests are to be traced; by default all that frontends say.
    """

    def __init__(
        self,
        reader: TraceReader,
        exporter: Exporter,
        count: Callable[[int, int], None],
        settings: TraceSettings | None = None,
        maker: SpanMaker | None = None,
    ) -> None:
        self.settings = settings or TraceSettings()
        self._reader, self._exporter, self._count = reader, exporter, count
        self._maker = maker or SpanMaker()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="traces", daemon=True)
        self._untold, self._quiet_periods = 0, _QUIET_PERIODS

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is there, and end; what is not taken within `timeout_s` is lost."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the last traces are dropped: their receiver does not accept them in time")
            self._exporter.close()

    def _live(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self.send()
        self.send(last=True)

    def send(self, *, last: bool = False) -> None:
        """Send what has come since the last time, and with the last of it all batches."""
        requests, dropped = self._reader.read()
        spans, sent = self._maker.make(self.settings.admit(requests), last=last), 0
        for start in range(0, len(spans), _SENT_SPANS):
            portion = spans[start : start + _SENT_SPANS]
            # Each request has one such span.
            count = sum(span.of_caller for span in portion)
            if self._exporter.send(portion):
                sent += count
            else:
                dropped += count
        self._count(sent, dropped)
        self._tell(dropped)

    def _tell(self, dropped: int) -> None:
        """Say now and then how many requests were left out."""
        self._untold += dropped
        self._quiet_periods += 1
        if self._untold and self._quiet_periods > _QUIET_PERIODS:
            logger.warning(
                "traces of %d requests were dropped: their receiver did not accept them", self._untold
            )
            self._untold = self._quiet_periods = 0


class Requests:
    """Answers requests of frontends; see `stoker.gateway.administration`."""

    def __init__(
        self,
        rollout: Rollout,
        frontends: FrontendProcesses,
        background: Background,
        reload: Callable[[], Awaitable[None]],
        live: LiveSettings,
        pipelines: Collection[str] = (),
        find_keys: Callable[[str], dict[str, str]] | None = None,
    ) -> None:
        """Create it with the objects that carry requests out.

        Args:
            reload: Replaces the server.
            find_keys: Returns the primary keys of all services for the token of the sign-in link; None without one.
        """
        self._live, self._pipelines, self._find_keys = live, pipelines, find_keys
        self._rollout = rollout
        self._frontends = frontends
        self._background = background
        self._reload = reload

    def answer(self, asker: FrontendChild, ask: Ask) -> None:
        """Start a task that answers a request."""
        self._background.spawn(self._answer(asker, ask))

    async def _answer(self, asker: FrontendChild, ask: Ask) -> None:
        try:
            entries = await self._perform(ask)
        except StokerError as error:
            self._refuse(asker, ask, error)
        except Exception:
            logger.exception("a request of a frontend failed: %s", ask)
            self._refuse(asker, ask, StokerError("An unexpected internal error occurred."))
        else:
            self._frontends.reply(asker, Reply(ask.ticket, tuple(entries)))

    async def _perform(self, ask: Ask) -> Sequence[Mapping[str, Any]]:
        if isinstance(ask, AskLoad | AskUnload | AskShift | AskDefault) and ask.model in self._pipelines:
            raise RequestError(
                f"'{ask.model}' is a pipeline, which follows its models; load and unload these by their names"
            )
        match ask:
            case AskIndex():
                return await self._rollout.index(ready=ask.ready)
            case AskEvents():
                return self._rollout.events.listed(ask.model)
            case AskTraces():
                return [self._live.traced(ask.model, ask.changes)]
            case AskLogs():
                return [self._live.logged(ask.changes)]
            case AskLoad() | AskUnload() | AskWake() | AskShift() | AskDefault():
                await self._change(ask)
            case AskReload():
                await self._reload()
            case AskKeys():
                if self._find_keys is None:
                    raise NotSupported("This server has printed no link to sign in with.")
                return [{"name": name, "key": key} for name, key in self._find_keys(ask.token).items()]
            case _:
                assert_never(ask)
        return []

    async def _change(self, ask: AskLoad | AskUnload | AskWake | AskShift | AskDefault) -> None:
        """Change what is served of a model."""
        match ask:
            case AskLoad():
                await self._rollout.load(ask.model, ask.policy, ask.version, ask.adjustments)
            case AskWake():
                await self._rollout.wake(ask.model, ask.version, ask.timeout_s, ask.caller)
            case AskUnload():
                await self._rollout.unload(ask.model, ask.version)
            case AskShift():
                await self._rollout.shift(ask.model, ask.canary)
            case AskDefault():
                await self._rollout.set_default(ask.model, ask.version)

    def _refuse(self, asker: FrontendChild, ask: Ask, error: StokerError) -> None:
        refusal = Refusal(ask.ticket, error.status, error.code, str(error)[:2000], error.retry_after_s)
        self._frontends.reply(asker, refusal)


logger = logging.getLogger(__name__)

_GPU_POLL_S: Final = 2.0
_STEP_S: Final = 1.0
"""The length of a step of the console's history."""
_LOOK_S: Final = 1.0
_SAVE_S: Final = 10.0
_TRIAL_S: Final = 2.0
_WORN_S: Final = 10.0
_END_TIMEOUT_S: Final = 5.0
_DRAIN_TIMEOUT_S: Final = 30.0
_INTERRUPT_GRACE_S: Final = 0.2
# Wrappers such as timeout(1) send one request to stop twice: to the process, and to its group.
_SAME_SIGNAL_S: Final = 0.25


class Supervisor:
    """Runs one server."""

    def __init__(
        self,
        settings: ServerSettings,
        models: Sequence[Deployment],
        keys_dir: Path,
        sockets: Sequence[socket.socket],
        on_ready: Callable[[StartUp], None],
        stock: Stock,
        available: Mapping[str, AvailableModel] = MappingProxyType({}),
        broken: Mapping[tuple[str, int], OperatorError] = MappingProxyType({}),
        succession: Succession | None = None,
        sign_in: SignInLink | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            broken: By name and version what of them is not loaded, and why.
            sign_in: The link with which the console can be opened; None if there is none.
        """
        self._settings, self._available, self._on_ready = settings, available, on_ready
        self._models, self._keys_dir = list(models), keys_dir
        self._begun_s = time.monotonic()
        self._metrics_fd = MetricMemory.create()
        memory = MetricMemory(self._metrics_fd)
        self._page = memory.page(SUPERVISOR_PAGE)
        self._traces = trace_sender(settings, os.environ, self._metrics_fd, self._page.count_traces)
        traces = None if self._traces is None else self._traces.settings
        supervision = Supervision(self._metrics_fd, self._page, traces)
        self.background = supervision.background
        self._broken = dict(broken)
        self._catalogue = catalogue = Catalogue(self._models, available, broken, settings.pipelines)
        self._succession = succession or Succession(sockets)
        quiet = self._succession.predecessor is not None
        self.fleet = Fleet(settings, catalogue, keys_dir, sockets, supervision, self._on_request, quiet)
        events = Events()
        self._residency = None
        if settings.memory_mb is not None:
            before = self._succession.predecessor
            free_bytes = {} if before is None else before.labels.free_bytes
            device_memory = DeviceMemory(settings.memory_mb, self.fleet.devices.processes, free_bytes)
            device_memory.learn_available({device for model in models for device in model.devices})
            footprints = Footprints(stock.footprints_file)
            self._residency = Residency(
                device_memory, catalogue, self.fleet, stock, memory, events, footprints
            )
        self._rollout = Rollout(catalogue, self.fleet, stock, memory, events, self._residency)
        self._live = LiveSettings(self.fleet, traces, settings.trace_ratio)
        frontends, names = self.fleet.frontends, catalogue.pipelines
        find_keys = None if sign_in is None else functools.partial(self._find_keys, sign_in)
        self._requests = Requests(
            self._rollout, frontends, self.background, self._reload, self._live, names, find_keys
        )
        self._recycler = Recycler(self.fleet.devices, self._rollout)
        self._trials = Trials(catalogue, self._rollout, memory)
        self._stock, self._watch = stock, RepositoryPoller(self._rollout, stock, settings.poll_s)
        self._gpus = GpuReader()
        self._announced = self._port_stays = False
        self._stop_grace_s = self._asked_s = 0.0

    async def run(self) -> Successor | None:
        """Serve until a signal asks to stop or another server takes over; return a successor that is a child."""
        loop = asyncio.get_running_loop()
        follower = self._follow_keys()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, signal.SIGTERM, self._settings.drain_grace_s)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, signal.SIGINT, _INTERRUPT_GRACE_S)
        loop.add_signal_handler(signal.SIGUSR2, self._on_reload_signal)
        if self._succession.predecessor is not None:
            gone = functools.partial(self._on_signal, signal.SIGTERM, self._settings.drain_grace_s)
            self._succession.predecessor.watch(self._leave, gone)
        self.background.repeat("reading the GPUs", _GPU_POLL_S, self._read_gpus)
        self.background.repeat("looking for hung frontends", _LOOK_S, self._check_for_hung)
        self.background.repeat("showing which keys hold", _LOOK_S, self._show_keys)
        self.background.repeat("watching versions with weights", _TRIAL_S, self._trials.check)
        self.background.repeat("looking for worn device processes", _WORN_S, self._recycler.check)
        if self._settings.console:
            recorder = Recorder(self._metrics_fd, lambda: self.fleet.pids)
            self.background.repeat("recording what the console shows", _STEP_S, recorder.record)
        if self._traces is not None:
            self._traces.start()
            self.background.repeat("looking how many traces are left", _LOOK_S, self._check_traces)
        starting = loop.create_task(self._start())
        stopped = loop.create_task(self.background.stopped())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await stopped
            await self._drain()
        finally:
            starting.cancel()
            stopped.cancel()
            await self._end_all()
            if follower is not None:
                await in_thread(follower.close)
        return self._succession.successor

    def _follow_keys(self) -> Follower | None:
        if not (self._settings.auth or self._settings.token_auth):
            return None
        follower = Follower(self._keys_dir, MetricMemory(self._metrics_fd).key_changes)
        follower.start()
        return follower

    async def _start(self) -> None:
        all_needed = self._settings.ends_on_error(len(self._available))
        may_be_earlier = tries_earlier(self._settings, self._available)
        resident = [model for model in self._models if not model.on_demand]
        models, failed = await self.fleet.start(resident, all_needed=all_needed and not may_be_earlier)
        broken = self._broken | {
            (model.name, model.version): failed[model.number]
            for model in self._models
            if model.number in failed
        }
        await self._rollout.begin(self._available, failed)
        earlier = await self._rollout.serve_earlier(self._available) if may_be_earlier else []
        models += [self.fleet.devices.replicas.report(model) for model in earlier if not model.on_demand]
        replaced = {model.name for model in earlier}
        lost = [error for (name, _), error in broken.items() if name not in replaced]
        nothing = not models and (failed or not self._models) and self._settings.exit_on_error is None
        if lost and (all_needed or nothing):
            raise next(iter(failed.values()), lost[0])
        pipelines, unjoined = join_pipelines(self._settings.pipelines, self._catalogue, models)
        await self.fleet.frontends.listen()
        self._announced = True
        processes = self.fleet.devices.processes
        devices = [process.report for process in processes if process.report is not None]
        elapsed_s = time.monotonic() - self._begun_s
        on_demand = list(dict.fromkeys(model.name for model in self._models if model.on_demand))
        self._on_ready(StartUp(devices, models, elapsed_s, broken | unjoined, pipelines, on_demand))
        self.background.spawn(self._watch.run())
        if self._residency is not None:
            await in_thread(self._residency.warn_of_too_large, self._models)
            self.background.repeat("looking at the memory of models", _STEP_S, self._residency.check)
            self.background.repeat("keeping footprints", _SAVE_S, self._residency.save_footprints)
        self._succession.report_ready()

    def _on_request(self, asker: FrontendChild, ask: Ask) -> None:
        self._requests.answer(asker, ask)

    def _find_keys(self, sign_in: SignInLink, token: str) -> dict[str, str]:
        sign_in.use(token)
        models = [deployed.name for deployed in self._catalogue.served]
        return self._stock.primary_keys(dict.fromkeys((*models, *self._catalogue.pipelines)))

    def _on_signal(self, number: signal.Signals, grace_s: float) -> None:
        now_s = time.monotonic()
        if self.background.stopping and now_s - self._asked_s < _SAME_SIGNAL_S:
            return
        first, self._asked_s = not self._asked_s, now_s
        if first and self._succession.successor is not None:
            # The signal is for the child that serves; this process is stopping already, and ends when the child
            # does.
            self._succession.successor.send_signal(number)
            return
        if self.background.stopping:
            logger.warning("asked to stop a second time: ending at once")
            for child in self.fleet.children:
                child.kill()
            os._exit(1)
        self._stop_grace_s = grace_s if self._announced else 0.0
        self._succession.end(number)
        self.background.stop()

    def _on_reload_signal(self) -> None:
        if self._succession.successor is not None:
            # This process is about to become its guardian.
            self._succession.successor.send_signal(signal.SIGUSR2)
            return

        async def reload() -> None:
            try:
                await self._reload()
            except StokerError as error:
                logger.error("%s", error)  # noqa: TRY400  # an operator's

        self.background.spawn(reload())

    async def _reload(self) -> None:
        """Replace this server by a new one; returns when that serves.

        Raises:
            ReloadFailed: The new one did not start.
            NotReady: This server is starting, stopping, or being replaced already.
        """
        if not self._announced or self.background.stopping:
            raise NotReady("The server is starting or stopping.")
        free_bytes = {} if self._residency is None else self._residency.device_memory.free_bytes
        await self._succession.hand_over(Labels(self._catalogue.labels, free_bytes))
        if self._succession.successor is not None:
            self._leave()

    def _leave(self) -> None:
        """Leave the sockets to another server from now on."""
        self._port_stays = True
        self._stop_grace_s = self._settings.drain_grace_s
        self.background.stop()

    async def _drain(self) -> None:
        """Drain: readiness off, requests are answered for a grace period, then the port closes and the rest ends.

        Where another server keeps the port open, readiness stays on, and new connections go to that server.
        """
        frontends = self.fleet.frontends
        children = frontends.children
        frontends.tell(Drain(self._port_stays))
        await asyncio.sleep(self._stop_grace_s)
        frontends.close_sockets()
        timeouts_ms = [model.timeout_ms for model in self._catalogue.served]
        timeouts_ms += [one.timeout_ms or self._settings.timeout_ms for one in self._settings.pipelines]
        longest_s = max(timeouts_ms, default=0) / 1000
        timeout_s = min(_DRAIN_TIMEOUT_S, longest_s)
        frontends.tell(Stop(timeout_s))
        waits = [asyncio.ensure_future(child.process.wait()) for child in children]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s + _END_TIMEOUT_S)

    async def _end_all(self) -> None:
        self.background.cancel()
        await self.fleet.end()
        if self._traces is not None:
            await in_thread(self._traces.close)
        self.fleet.frontends.close_sockets()

    async def _check_for_hung(self) -> bool:
        if not self.background.stopping:
            self.fleet.frontends.end_hung()
        return not self.background.stopping

    async def _check_traces(self) -> bool:
        self._live.notify_frontends()
        return True

    async def _show_keys(self) -> bool:
        self._page.set_keys_generation(self._stock.keys_generation)
        return True

    async def _read_gpus(self) -> bool:
        try:
            readings = await in_thread(self._gpus.read)
        except OSError:  # there is no driver
            return False
        self._page.set_gpus(readings)
        return True
