"""The processes of a server, and the arenas and doorbells that join frontends and device processes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from stoker.arena import Arena, capacity_rows
from stoker.control.device_messages import AddLane, ServerAddress
from stoker.control.frontend_messages import (
    Ask,
    AttachReplica,
    Compare,
    DetachReplica,
    IsolationChanged,
    Route,
)
from stoker.deployment import Deployment
from stoker.errors import OperatorError
from stoker.keys.keyring import Keys
from stoker.row_isolation import RowIsolation
from stoker.settings.server import ServerSettings
from stoker.supervisor.background import Supervision
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.children import Child
from stoker.supervisor.device_process import DeviceProcess
from stoker.supervisor.device_processes import DeviceProcesses
from stoker.supervisor.frontend_process import FrontendChild, FrontendProcess
from stoker.supervisor.frontend_processes import FrontendProcesses
from stoker.supervisor.replicas import Replica
from stoker.supervisor.reports import ModelReport
from stoker.takeover.comparison import Comparison, alike

logger = logging.getLogger(__name__)


_ATTACH_AGAIN_S: Final = 1.0
_END_TIMEOUT_S: Final = 5.0
_BUSY_END_TIMEOUT_S: Final = 0.5


class Fleet:
    """All processes of a server except its supervisor."""

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: Catalogue,
        keys_dir: Path,
        sockets: Sequence[socket.socket],
        supervision: Supervision,
        on_request: Callable[[FrontendChild, Ask], None],
        quiet_start: bool = False,
    ) -> None:
        """Create it without processes.

        Args:
            sockets: Listening sockets, one for each frontend.
            quiet_start: Whether frontends accept connections only when told to; see `FrontendProcesses.listen`.
        """
        self._changes, self._background = supervision.changes, supervision.background
        self.devices = DeviceProcesses(
            supervision,
            self._on_loaded,
            self._on_lost,
            self._on_isolation_changed,
            settings.device_batches,
            own_address(settings, keys_dir, sockets[0]),
            settings.most_packed,
        )
        self.frontends = FrontendProcesses(
            settings,
            catalogue,
            keys_dir,
            sockets,
            supervision,
            self._on_started,
            on_request,
            self._on_outgrown,
            self._on_attach_failed,
            quiet_start=quiet_start,
        )
        self._comparisons = itertools.count()
        self._published: dict[str, Route] = {}
        self._answer_bytes: dict[int, int] = {}
        """By a model's number the bytes that its answers need, if that is more than its signature says."""

    @property
    def children(self) -> list[Child[Any, Any]]:
        """All running processes."""
        devices = [process.child for process in self.devices.processes if process.child is not None]
        return [*devices, *self.frontends.children]

    @property
    def pids(self) -> dict[int, int]:
        """The ids of the running processes, by their pages of the metrics."""
        devices = {process.group.page: process.child for process in self.devices.processes}
        frontends = {process.page: process.child for process in self.frontends.processes}
        children = (devices | frontends).items()
        return {page: child.process.pid for page, child in children if child is not None}

    async def start(
        self, models: Sequence[Deployment], *, all_needed: bool
    ) -> tuple[list[ModelReport], dict[int, OperatorError]]:
        """Start all processes with these models; returns when every frontend scores with those that can be loaded.

        Returns:
            The report on each of them for the operator, and by number why others could not be loaded; parts of these
            may be left until they are removed.
        """
        await self.devices.start(models)
        await self.frontends.start()
        failed = await self._joined(models, all_needed=all_needed)
        # Now, because a device process that ends while frontends begin to listen is restarted without a new report.
        reports = [self.devices.replicas.report(model) for model in models if model.number not in failed]
        return reports, failed

    async def end(self) -> None:
        """End all processes; those that are loading or importing do not listen, and are killed sooner."""
        devices, frontends = self.devices, self.frontends
        busy: dict[Child[Any, Any] | None, bool] = {
            process.child: devices.is_loading(process) for process in devices.processes
        }
        busy |= {process.child: not process.listening for process in frontends.processes}
        await asyncio.gather(
            *(
                child.end(_BUSY_END_TIMEOUT_S if is_busy else _END_TIMEOUT_S, busy=is_busy)
                for child, is_busy in busy.items()
                if child is not None
            )
        )

    async def add(self, model: Deployment) -> None:
        """Load a model in processes of its own, or beside others; returns when every frontend can score with it."""
        self.frontends.serve(model)
        try:
            await self.devices.start([model], quiet=True)
            await self._joined([model], all_needed=True)
        except Exception:
            await self.remove(model)
            raise

    async def wake(self, model: Deployment) -> None:
        """Load a model whose service the frontends have; returns when every frontend can score with it."""
        self.frontends.update(model)
        try:
            await self.devices.start([model], quiet=True)
            await self._joined([model], all_needed=True)
        except Exception:
            await self.devices.unload(model)
            raise

    async def joined(self, model: Deployment, is_leaving: Callable[[], bool]) -> None:
        """Wait until every frontend can score with a loaded model: a process of it may be restarting.

        Args:
            is_leaving: Whether the model is being unloaded, so that its process comes back without it.
        """
        await self._joined([model], all_needed=True, is_leaving=is_leaving)

    async def sleep(self, model: Deployment) -> None:
        """Unload a model whose service the frontends keep; returns when its processes have unloaded it."""
        await self.frontends.sleep(model)
        await self.devices.unload(model)

    async def remove(self, model: Deployment) -> None:
        """Stop serving a model that no route names any more; returns when all processes have dropped it."""
        await self.frontends.retire(model)
        await self.devices.unload(model)
        self.devices.replicas.forget(model)
        self._answer_bytes.pop(model.number, None)

    async def compare(self, old: Deployment, new: Deployment) -> Comparison | None:
        """Run the sampled requests of all frontends through two versions; without samples, the sample input.

        Returns:
            The differences; None if their tensors differ, or one keeps state.
        """
        before, after = self.devices.replicas.of(old), self.devices.replicas.of(new)
        if before and after and not alike(before[0].signature, after[0].signature):
            return None
        comparison = await self._compare(old, new, None)
        sample = new.sample_file or old.sample_file
        if not comparison.requests and sample is not None:
            comparison = await self._compare(old, new, sample)
        return comparison

    async def _compare(self, old: Deployment, new: Deployment, sample: Path | None) -> Comparison:
        """Ask all frontends, or one of them to run a sample; frontends that end before they answer are left out."""
        ticket = next(self._comparisons)
        running = [
            (one, one.child) for one in self.frontends.processes if one.started and one.child is not None
        ]
        if sample is not None:
            running = running[:1]
        for process, _ in running:
            self.frontends.send(process, Compare(ticket, old.number, new.number, sample))
        await self._changes.until(
            lambda: all(
                ticket in process.compared or process.child is not child for process, child in running
            )
        )
        return sum((process.compared.pop(ticket, Comparison()) for process, _ in running), Comparison())

    def publish(self, route: Route) -> None:
        """Tell frontends what a model's names mean from now on, if that has changed."""
        if self._published.get(route.name) != route:
            self._published[route.name] = route
            self.frontends.tell(route)

    async def _joined(
        self,
        models: Sequence[Deployment],
        *,
        all_needed: bool,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> dict[int, OperatorError]:
        """Wait until all replicas of these models are attached to all frontends; returns those that cannot be."""
        replicas = self.devices.replicas

        def failed() -> dict[int, OperatorError]:
            errors = self.devices.failed
            return {model.number: errors[model.number] for model in models if model.number in errors}

        def settled() -> bool:
            numbers = failed()
            if is_leaving() or (numbers and all_needed):
                return True
            left = [model for model in models if model.number not in numbers]
            loaded = [replica for model in left for replica in replicas.of(model)]
            return all(map(replicas.is_complete, left)) and self.frontends.have(
                {replica.generation for replica in loaded}
            )

        await self._changes.until(settled)
        if all_needed:
            for error in failed().values():
                raise error
        return failed()

    def _on_loaded(self, process: DeviceProcess, replica: Replica) -> None:
        for frontend in self.frontends.processes:
            if frontend.started and replica.model.number in frontend.serving:
                self._attach(process, replica, frontend)

    def _on_started(self, frontend: FrontendProcess) -> None:
        for process in self.devices.processes:
            for replica in self.devices.replicas.in_group(process.group):
                if replica.model.number in frontend.serving:
                    self._attach(process, replica, frontend)

    def _on_lost(self, replica: Replica) -> None:
        self.frontends.tell(DetachReplica(replica.generation))

    def _on_isolation_changed(self, model: Deployment, isolation: RowIsolation) -> None:
        self.frontends.tell(IsolationChanged(model.number, isolation))

    def _on_outgrown(self, frontend: FrontendProcess, generation: int, answer_bytes: int) -> None:
        """Attach a frontend to a replica with larger rows; later attachments get rows of this size too."""
        for process, replica in self._of_generation(generation):
            known = self._answer_bytes.get(replica.model.number, 0)
            self._answer_bytes[replica.model.number] = max(known, answer_bytes)
            self._attach(process, replica, frontend)

    def _on_attach_failed(self, frontend: FrontendProcess, generation: int) -> None:
        """Attach a frontend to a replica again later, when closed connections have freed descriptors."""
        child = frontend.child

        async def attach_again() -> None:
            for process, replica in self._of_generation(generation):
                if frontend.child is child:
                    self._attach(process, replica, frontend)

        self._background.later(_ATTACH_AGAIN_S, attach_again)

    def _of_generation(self, generation: int) -> Iterator[tuple[DeviceProcess, Replica]]:
        """The replica with this generation and its process, if it still exists."""
        for process in self.devices.processes:
            for replica in self.devices.replicas.in_group(process.group):
                if replica.generation == generation:
                    yield process, replica

    def _attach(self, process: DeviceProcess, replica: Replica, frontend: FrontendProcess) -> None:
        """Make an arena and a doorbell and send each side its end; without resources for it, try again later."""
        if process.child is None or frontend.child is None:
            return
        try:
            self._join(process, replica, frontend)
        except OSError as error:
            name = replica.model.name
            logger.error("a replica of %s cannot be attached: %s", name, error)  # noqa: TRY400
            self._on_attach_failed(frontend, replica.generation)

    def _join(self, process: DeviceProcess, replica: Replica, frontend: FrontendProcess) -> None:
        signature, answer_bytes = replica.signature, self._answer_bytes.get(replica.model.number)
        if answer_bytes is not None:
            signature = signature.with_answers(answer_bytes)
        capacity = capacity_rows(signature, replica.model.max_batch_rows)
        number = replica.model.number
        with ExitStack() as ours:
            arena_fd = Arena.create(signature, capacity)
            ours.callback(os.close, arena_fd)
            near, far = map(ours.enter_context, socket.socketpair())
            self.devices.attach(process, AddLane(number, signature, capacity), [arena_fd, far.fileno()])
            place = next(place for model, place in process.group.members if model.number == number)
            places = len(replica.model.devices)
            attach = AttachReplica(number, replica.generation, signature, capacity, place, places)
            self.frontends.send(frontend, attach, [arena_fd, near.fileno()])


def own_address(settings: ServerSettings, keys_dir: Path, listening: socket.socket) -> ServerAddress:
    """Return where models of a server reach it over the loopback.

    Args:
        listening: One of the sockets for HTTP.
    """
    host, port, *_ = listening.getsockname()
    problem = ""
    if settings.token_auth and not settings.auth:
        problem = "models cannot call others here: this server takes tokens alone (auth: true admits keys)"
    elif settings.tls is not None and settings.tls.client_ca is not None:
        problem = "models cannot call others here: this server asks its callers for certificates"
    return ServerAddress(
        {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host),  # noqa: S104  # what it listens on
        port,
        settings.tls is not None,
        settings.auth,
        keys_dir,
        Keys.from_operator(settings.primary_key or None, settings.secondary_key or None),
        settings.keys_dir,
        settings.endpoint,
        problem,
    )
