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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stoker.control.frontend_messages import (
    Ask,
)
from stoker.control.handover_messages import Labels
from stoker.errors import NotReady, StokerError
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.models.available_models import tries_earlier
from stoker.residency.footprints import Footprints
from stoker.settings.server import ServerSettings
from stoker.supervisor.background import Supervision
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.device_memory import DeviceMemory
from stoker.supervisor.events import Events
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.frontend_process import FrontendChild
from stoker.supervisor.frontend_requests import FrontendRequests
from stoker.supervisor.handover import Handover
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.pipeline_checks import join_pipelines
from stoker.supervisor.recycler import Recycler
from stoker.supervisor.reports import StartUp
from stoker.supervisor.repository_poller import RepositoryPoller
from stoker.supervisor.residency import Residency
from stoker.supervisor.rollout import Rollout
from stoker.supervisor.shutdown import Shutdown
from stoker.supervisor.sign_in import SignInLink
from stoker.supervisor.stock import FirstModels, Stock
from stoker.supervisor.successor import Successor
from stoker.supervisor.trace_sender import trace_sender
from stoker.supervisor.trials import Trials
from stoker.supervisor.upkeep import Upkeep

logger = logging.getLogger(__name__)

_STEP_S: Final = 1.0
_SAVE_S: Final = 10.0


class Supervisor:
    """Runs one server."""

    def __init__(
        self,
        settings: ServerSettings,
        first: FirstModels,
        keys_dir: Path,
        sockets: Sequence[socket.socket],
        on_ready: Callable[[StartUp], None],
        stock: Stock,
        begun_s: float,
        handover: Handover | None = None,
        sign_in: SignInLink | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            first: The models that the server starts with.
            begun_s: When the command began, by `time.monotonic`.
            sign_in: The link with which the console can be opened; None if there is none.
        """
        self._settings, self._first, self._on_ready = settings, first, on_ready
        self._begun_s = begun_s
        self._stock, self._keys_dir = stock, keys_dir
        metrics_fd = MetricMemory.create()
        memory = MetricMemory(metrics_fd)
        page = memory.page(SUPERVISOR_PAGE)
        traces = trace_sender(settings, os.environ, metrics_fd, page.count_traces)
        trace_settings = None if traces is None else traces.settings
        supervision = Supervision(metrics_fd, page, trace_settings)
        self.background = supervision.background
        self._catalogue = Catalogue(first.deployments, first.available, first.broken, settings.pipelines)
        self._handover = handover or Handover(sockets)
        quiet = self._handover.predecessor is not None
        self.fleet = Fleet(settings, self._catalogue, keys_dir, sockets, supervision, self._on_request, quiet)
        self._shutdown = Shutdown(settings, self.fleet, self._catalogue, self._handover, self.background)
        events = Events()
        self._residency = self._make_residency(memory, events)
        self._rollout = Rollout(self._catalogue, self.fleet, stock, memory, events, self._residency)
        live = LiveSettings(self.fleet, trace_settings, settings.trace_ratio)
        self._requests = FrontendRequests(
            self._rollout, self.fleet.frontends, self.background, self._reload, live,
            self._catalogue.pipelines, None if sign_in is None else functools.partial(self._find_keys, sign_in),
        )  # fmt: skip
        trials = Trials(self._catalogue, self._rollout, memory)
        recycler = Recycler(self.fleet.devices, self._rollout)
        self._upkeep = Upkeep(supervision, self.fleet, trials, recycler, traces, live)

    def _make_residency(self, memory: MetricMemory, events: Events) -> Residency | None:
        """Make the loads on demand; None if no budget of memory is set."""
        memory_mb, before = self._settings.memory_mb, self._handover.predecessor
        if memory_mb is None:
            return None
        free_bytes = {} if before is None else before.labels.free_bytes
        device_memory = DeviceMemory(memory_mb, self.fleet.devices.processes, free_bytes)
        device_memory.learn_available(
            {device for model in self._first.deployments for device in model.devices}
        )
        footprints = Footprints(self._stock.footprints_file)
        return Residency(device_memory, self._catalogue, self.fleet, self._stock, memory, events, footprints)

    async def run(self) -> Successor | None:
        """Serve until a signal asks to stop or another server takes over; return a successor that is a child."""
        loop = asyncio.get_running_loop()
        self._shutdown.follow_signals()
        loop.add_signal_handler(signal.SIGUSR2, self._on_reload_signal)
        self._upkeep.begin(self._settings, self._stock, self._keys_dir)
        starting = loop.create_task(self._start())
        stopped = loop.create_task(self.background.stopped())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await stopped
            await self._shutdown.drain()
        finally:
            starting.cancel()
            stopped.cancel()
            self.background.cancel()
            await self.fleet.end()
            await self._upkeep.end()
            self.fleet.frontends.close_sockets()
        return self._handover.successor

    async def _start(self) -> None:
        all_needed = self._settings.ends_on_error(len(self._first.available))
        may_be_earlier = tries_earlier(self._settings, self._first.available)
        resident = [model for model in self._first.deployments if not model.on_demand]
        models, failed = await self.fleet.start(resident, all_needed=all_needed and not may_be_earlier)
        broken = dict(self._first.broken) | {
            (model.name, model.version): failed[model.number]
            for model in self._first.deployments
            if model.number in failed
        }
        await self._rollout.begin(self._first.available, failed)
        earlier = await self._rollout.serve_earlier(self._first.available) if may_be_earlier else []
        models += [self.fleet.devices.replicas.report(model) for model in earlier if not model.on_demand]
        replaced = {model.name for model in earlier}
        lost = [error for (name, _), error in broken.items() if name not in replaced]
        nothing = (
            not models and (failed or not self._first.deployments) and self._settings.exit_on_error is None
        )
        if lost and (all_needed or nothing):
            raise next(iter(failed.values()), lost[0])
        pipelines, unjoined = join_pipelines(self._settings.pipelines, self._catalogue, models)
        await self.fleet.frontends.listen()
        self._shutdown.is_announced = True
        processes = self.fleet.devices.processes
        devices = [process.report for process in processes if process.report is not None]
        elapsed_s = time.monotonic() - self._begun_s
        on_demand = list(dict.fromkeys(model.name for model in self._first.deployments if model.on_demand))
        only = self._catalogue.only
        self._on_ready(StartUp(devices, models, elapsed_s, broken | unjoined, pipelines, on_demand, only))
        watch = RepositoryPoller(self._rollout, self._stock, self._settings.poll_s)
        self.background.spawn(watch.run())
        if self._residency is not None:
            self.background.repeat("looking at the memory of models", _STEP_S, self._residency.check)
            self.background.repeat("keeping footprints", _SAVE_S, self._residency.save_footprints)
        self._handover.report_ready()

    def _on_request(self, asker: FrontendChild, ask: Ask) -> None:
        self._requests.answer(asker, ask)

    def _find_keys(self, sign_in: SignInLink, token: str) -> dict[str, str]:
        sign_in.use(token)
        models = [deployed.name for deployed in self._catalogue.served]
        return self._stock.keys.find_primary(dict.fromkeys((*models, *self._catalogue.pipelines)))

    def _on_reload_signal(self) -> None:
        if self._handover.successor is not None:
            # This process is about to become its guardian.
            self._handover.successor.send_signal(signal.SIGUSR2)
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
        if not self._shutdown.is_announced or self.background.stopping:
            raise NotReady("The server is starting or stopping.")
        free_bytes = {} if self._residency is None else self._residency.device_memory.free_bytes
        await self._handover.hand_over(Labels(self._catalogue.labels, free_bytes))
        if self._handover.successor is not None:
            self._shutdown.leave()
