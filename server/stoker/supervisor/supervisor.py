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
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stoker.control.frontend_messages import (
    Ask,
    Drain,
    Stop,
)
from stoker.control.handover_messages import Labels
from stoker.deployment import Deployment
from stoker.errors import NotReady, StokerError
from stoker.gpu.nvml import GpuReader
from stoker.keys.generation import Follower
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.models.available_models import tries_earlier
from stoker.residency.footprints import Footprints
from stoker.settings.server import ServerSettings
from stoker.supervisor.background import Supervision, in_thread
from stoker.supervisor.catalogue import Catalogue, Events, StartUp, join_pipelines
from stoker.supervisor.device_memory import DeviceMemory
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.handover import Succession, Successor
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.recycler import Recycler
from stoker.supervisor.repository_poller import RepositoryPoller
from stoker.supervisor.requests import Requests
from stoker.supervisor.residency import Residency
from stoker.supervisor.rollout import Rollout, Trials
from stoker.supervisor.trace_sender import trace_sender
from stoker.supervisor.tracing import Recorder

if TYPE_CHECKING:
    from stoker.errors import OperatorError
    from stoker.models.available_models import AvailableModel
    from stoker.supervisor.frontend_processes import FrontendChild
    from stoker.supervisor.sign_in import SignInLink
    from stoker.supervisor.stock import Stock

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
        return self._stock.keys.find_primary(dict.fromkeys((*models, *self._catalogue.pipelines)))

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
        self._page.set_keys_generation(self._stock.keys.generation)
        return True

    async def _read_gpus(self) -> bool:
        try:
            readings = await in_thread(self._gpus.read)
        except OSError:  # there is no driver
            return False
        self._page.set_gpus(readings)
        return True
