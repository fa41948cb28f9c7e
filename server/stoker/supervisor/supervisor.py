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

from stoker.control.asks import Ask
from stoker.control.frontend_messages import Drain, Stop
from stoker.control.handover_messages import Labels
from stoker.errors import NotReady, StokerError
from stoker.gpu.nvml import GpuReader
from stoker.keys.generation import Follower
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.models.deployed import Deployed
from stoker.settings.server import ServerSettings
from stoker.supervisor.admin_requests import Requests
from stoker.supervisor.background import Supervision, in_thread
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.handover import Succession, Successor
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.pipelines import join_pipelines
from stoker.supervisor.recorder import Recorder
from stoker.supervisor.rollout import Rollout
from stoker.supervisor.start_up import StartUp
from stoker.supervisor.tracing import trace_sender
from stoker.supervisor.trials import Trials
from stoker.supervisor.watch import Watch

if TYPE_CHECKING:
    from stoker.errors import OperatorError
    from stoker.models.offers import Offer
    from stoker.supervisor.frontend_process import FrontendChild
    from stoker.supervisor.version_manager import Stock

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

_GPU_POLL_S: Final = 2.0
_STEP_S: Final = 1.0
"""The length of a step of the console's history."""
_LOOK_S: Final = 1.0
_TRIAL_S: Final = 2.0
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
        models: Sequence[Deployed],
        keys_dir: Path,
        sockets: Sequence[socket.socket],
        on_ready: Callable[[StartUp], None],
        stock: Stock,
        offers: Mapping[str, Offer] = MappingProxyType({}),
        broken: Mapping[tuple[str, int], OperatorError] = MappingProxyType({}),
        succession: Succession | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            settings: The server's settings.
            models: The models to load before it is ready.
            keys_dir: The folder of the keys.
            sockets: Listening sockets, at least one for each frontend.
            on_ready: Called once, when everything is loaded.
            stock: The source of further versions.
            offers: The models of the settings by name.
            broken: By name and version what of them is not loaded, and why.
            succession: Its predecessor and successor; by default it has no predecessor.
        """
        self._settings, self._offers, self._on_ready = settings, offers, on_ready
        self._models, self._keys_dir = list(models), keys_dir
        self._begun_s = time.monotonic()
        self._metrics_fd = MetricMemory.create()
        memory = MetricMemory(self._metrics_fd)
        self._page = memory.page(SUPERVISOR_PAGE)
        self._traces = trace_sender(settings, os.environ, self._metrics_fd, self._page.count_traces)
        traces = None if self._traces is None else self._traces.settings
        supervision = Supervision(self._metrics_fd, self._page, traces)
        self._background = supervision.background
        self._broken = dict(broken)
        self._catalogue = catalogue = Catalogue(self._models, offers, broken, settings.pipelines)
        self._succession = succession or Succession(sockets)
        quiet = self._succession.predecessor is not None
        self._fleet = Fleet(settings, catalogue, keys_dir, sockets, supervision, self._on_request, quiet)
        self._rollout = Rollout(catalogue, self._fleet, stock, memory)
        self._live = LiveSettings(self._fleet, traces, settings.trace_ratio)
        frontends, names = self._fleet.frontends, catalogue.pipelines
        self._requests = Requests(self._rollout, frontends, self._background, self._reload, self._live, names)
        self._trials = Trials(catalogue, self._rollout, memory)
        self._stock, self._watch = stock, Watch(self._rollout, stock, settings.poll_s)
        self._gpus = GpuReader()
        self._announced = self._port_stays = False
        self._stop_grace_s = self._asked_s = 0.0

    async def run(self) -> Successor | None:
        """Serve until a signal asks to stop or another server takes over; return the successor, if that is a child.

        Raises:
            OperatorError: A model or device could not be used at start-up.
        """
        loop = asyncio.get_running_loop()
        follower = self._follow_keys()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, signal.SIGTERM, self._settings.drain_grace_s)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, signal.SIGINT, _INTERRUPT_GRACE_S)
        loop.add_signal_handler(signal.SIGUSR2, self._on_reload_signal)
        if self._succession.predecessor is not None:
            gone = functools.partial(self._on_signal, signal.SIGTERM, self._settings.drain_grace_s)
            self._succession.predecessor.watch(self._leave, gone)
        self._background.repeat("reading the GPUs", _GPU_POLL_S, self._read_gpus)
        self._background.repeat("looking for hung frontends", _LOOK_S, self._look_for_hung)
        self._background.repeat("showing which keys hold", _LOOK_S, self._show_keys)
        self._background.repeat("watching versions with weights", _TRIAL_S, self._trials.look)
        if self._settings.console:
            recorder = Recorder(self._metrics_fd, lambda: self._fleet.pids)
            self._background.repeat("recording what the console shows", _STEP_S, recorder.look)
        if self._traces is not None:
            self._traces.start()
            self._background.repeat("looking how many traces are left", _LOOK_S, self._look_at_traces)
        starting = loop.create_task(self._start())
        stopped = loop.create_task(self._background.stopped())
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
        all_needed = self._settings.ends_on_error(len(self._offers))
        models, failed = await self._fleet.start(self._models, all_needed=all_needed)
        if failed and not models and self._settings.exit_on_error is None:
            raise next(iter(failed.values()))
        broken = self._broken | {
            (model.servable.name, model.servable.version): failed[model.number]
            for model in self._models
            if model.number in failed
        }
        await self._rollout.begin(self._offers, failed)
        pipelines, unjoined = join_pipelines(self._settings.pipelines, self._catalogue, models)
        await self._fleet.frontends.listen()
        self._announced = True
        processes = self._fleet.devices.processes
        devices = [process.report for process in processes if process.report is not None]
        elapsed_s = time.monotonic() - self._begun_s
        self._on_ready(StartUp(devices, models, elapsed_s, broken | unjoined, pipelines))
        self._background.spawn(self._watch.run())
        self._succession.tell_ready()

    def _on_request(self, asker: FrontendChild, ask: Ask) -> None:
        self._requests.take(asker, ask)

    def _on_signal(self, number: signal.Signals, grace_s: float) -> None:
        now_s = time.monotonic()
        if self._background.stopping and now_s - self._asked_s < _SAME_SIGNAL_S:
            return
        first, self._asked_s = not self._asked_s, now_s
        if first and self._succession.successor is not None:
            # The signal is for the child that serves; this process is stopping already, and ends when the child
            # does.
            self._succession.successor.send_signal(number)
            return
        if self._background.stopping:
            logger.warning("asked to stop a second time: ending at once")
            for child in self._fleet.children:
                child.kill()
            os._exit(1)
        self._stop_grace_s = grace_s if self._announced else 0.0
        self._succession.end(number)
        self._background.stop()

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

        self._background.spawn(reload())

    async def _reload(self) -> None:
        """Replace this server by a new one; returns when that serves.

        Raises:
            ReloadFailed: The new one did not start.
            NotReady: This server is starting, stopping, or being replaced already.
        """
        if not self._announced or self._background.stopping:
            raise NotReady("The server is starting or stopping.")
        await self._succession.hand_over(Labels(self._catalogue.labels))
        if self._succession.successor is not None:
            self._leave()

    def _leave(self) -> None:
        """Leave the sockets to another server from now on."""
        self._port_stays = True
        self._stop_grace_s = self._settings.drain_grace_s
        self._background.stop()

    async def _drain(self) -> None:
        """Drain: readiness off, requests are answered for a grace period, then the port closes and the rest ends.

        Where another server keeps the port open, readiness stays on, and new connections go to that server.
        """
        frontends = self._fleet.frontends
        children = frontends.children
        frontends.tell(Drain(self._port_stays))
        await asyncio.sleep(self._stop_grace_s)
        frontends.close_sockets()
        timeouts_ms = [model.terms.timeout_ms for model in self._catalogue.served]
        timeouts_ms += [one.timeout_ms or self._settings.timeout_ms for one in self._settings.pipelines]
        longest_s = max(timeouts_ms, default=0) / 1000
        timeout_s = min(_DRAIN_TIMEOUT_S, longest_s)
        frontends.tell(Stop(timeout_s))
        waits = [asyncio.ensure_future(child.process.wait()) for child in children]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s + _END_TIMEOUT_S)

    async def _end_all(self) -> None:
        self._background.cancel()
        await self._fleet.end()
        if self._traces is not None:
            await in_thread(self._traces.close)
        self._fleet.frontends.close_sockets()

    async def _look_for_hung(self) -> bool:
        if not self._background.stopping:
            self._fleet.frontends.end_hung()
        return not self._background.stopping

    async def _look_at_traces(self) -> bool:
        self._live.tell_frontends()
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
