"""The device processes of a server: started, watched and restarted, each with the models of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, assert_never

from stoker.control.device_messages import (
    SUPERVISOR_END,
    AddLane,
    BatchingStopped,
    DeviceChosen,
    Failed,
    FromDevice,
    Loaded,
    ServerAddress,
    StartDevice,
    StopBatching,
    Unloaded,
    UnloadModel,
)
from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, OperatorError
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.row_isolation import RowIsolation
from stoker.supervisor.background import Supervision
from stoker.supervisor.children import Child
from stoker.supervisor.crashes import Crashes
from stoker.supervisor.device_process import DeviceChild, DeviceProcess, ReportedFailure
from stoker.supervisor.groups import Group, group, may_be_packed
from stoker.supervisor.load_timer import LoadTimer
from stoker.supervisor.replicas import Replica, Replicas, with_isolation
from stoker.supervisor.reports import DeviceReport
from stoker.system.logs import log_settings
from stoker.system.processes import yield_cores
from stoker.system.resources import ONE_BLAS_THREAD, private_memory
from stoker.system.wording import format_count
from stoker.tensors import Signature
from stoker.wire.images import image_layout

logger = logging.getLogger(__name__)


_END_TIMEOUT_S = 5.0
_OWN_ALGEBRA: Final = ("onnx", "tensorflow")
"""Frameworks that multiply matrices without OpenBLAS; PyTorch has it on ARM."""
_PACKING: Final = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_ARENA_MAX": "1"}
"""Weights are mapped one by one, so that those of an unloaded model are given back whatever lies beside them.

Where they cannot be mapped, they lie in the one arena whose end `malloc_trim` gives back.
"""
_GROWTH: Final = 1.5
_SLACK_BYTES: Final = 256 << 20
"""A process that packs is worn if it has more memory than its models took, times the one and plus the other."""


class DeviceProcesses:
    """All device processes.

    Attributes:
        failed: By number the models that could not be loaded at first, until they are unloaded.
    """

    def __init__(
        self,
        supervision: Supervision,
        on_loaded: Callable[[DeviceProcess, Replica], None],
        on_lost: Callable[[Replica], None],
        on_isolation_changed: Callable[[Deployment, RowIsolation], None],
        device_batches: int | None = None,
        server: ServerAddress | None = None,
        models_per_process: int | None = None,
    ) -> None:
        """Create it without processes.

        Args:
            server: Where models reach this server that may call others.
            device_batches: How many batches a device runs concurrently; None to find out.
            models_per_process: How many models may share a process; None for any number of those that are loaded
                at the start, and one of those that are loaded later.
        """
        self.failed: dict[int, OperatorError] = {}
        self._most = models_per_process
        self._crashes = Crashes(MetricMemory(supervision.metrics_fd))
        self.processes: list[DeviceProcess] = []
        self.replicas = Replicas()
        self._metrics_fd, self._page = supervision.metrics_fd, supervision.page
        self._turns_fd, self._device_batches = supervision.turns_fd, device_batches
        self._server = server
        self._background, self._changes = supervision.background, supervision.changes
        self._on_loaded = on_loaded
        self._on_lost = on_lost
        self._on_isolation_changed = on_isolation_changed

    async def start(self, models: Sequence[Deployment], *, quiet: bool = False) -> None:
        """Load models together, in new processes and running ones; returns before they are loaded.

        Args:
            quiet: Whether others serve: new processes yield the cores to them.
        """
        taken = [process.group.page for process in self.processes]
        running = [process for process in self.processes if quiet and process.is_open]
        apart = [model.number for model in models if self._crashes.are_frequent(model)]
        groups = group(models, taken, self._most, [process.group for process in running], apart)
        started = [DeviceProcess(formed, quiet) for formed in groups]
        for process in running:
            for model in models:
                if process.group.has(model.number):
                    process.load(model)
        for process in started:
            self.processes.append(process)
            self.replicas.join(process.group)
        for process in started:
            await self._start(process)

    async def unload(self, model: Deployment) -> None:
        """Remove a model from all processes, and end those that have no other model.

        No frontend may use it any more. Returns when it is unloaded everywhere; it may be loaded again.
        """
        self.failed.pop(model.number, None)
        for process in list(self.processes):
            was_member = process.group.has(model.number)
            process.group.remove(model)
            process.loaded.discard(model.number)
            if not process.group.members and not process.ended:
                await self._end(process)
            elif was_member and process.child is not None:
                self.replicas.unload(process.group, model)
                process.unloading.add(model.number)
                process.child.send(UnloadModel(model.number))
        await self._changes.until(
            lambda: not any(model.number in process.unloading for process in self.processes)
        )
        self._note_ready(model)

    def attach(self, process: DeviceProcess, lane: AddLane, fds: Sequence[int]) -> None:
        """Pass a process its ends of an arena and a doorbell."""
        if process.child is not None:
            process.child.send(lane, fds)

    def is_loading(self, process: DeviceProcess) -> bool:
        """Whether a running process has not loaded all its models yet."""
        return len(self.replicas.in_group(process.group)) < len(process.group.members)

    def packs(self, model: Deployment) -> bool:
        """Whether a model is loaded into a process that others use, or will."""
        return may_be_packed(model, self._most)

    def has_room_for(self, model: Deployment) -> bool:
        """Whether running processes would take a model in beside others, so that none is started for it."""
        return self.packs(model) and all(
            any(one.is_open and one.group.admits(model, device) for one in self.processes)
            for device in model.devices
        )

    def find_packed(self, model: Deployment) -> Replica | None:
        """Return a replica of a model in a process that packs; None if it has processes of its own."""
        for process in self.processes:
            if process.group.packs:
                for replica in self.replicas.in_group(process.group):
                    if replica.model.number == model.number:
                        return replica
        return None

    def find_worn(self) -> DeviceProcess | None:
        """Find a process that packs whose models should move to others, and let no more models join it.

        It has more memory than its models took when they were loaded, or a load hangs in it.
        """
        for process in self.processes:
            if not process.closed and process.is_open and not self.is_loading(process):
                process.closed = self._describe_growth(process)
            if process.closed and not process.ended:
                return process
        return None

    def _describe_growth(self, process: DeviceProcess) -> str:
        """Describe by how much a process has outgrown its models; empty if it has not."""
        assert process.child is not None, "it is open"
        loaded = self.replicas.in_group(process.group)
        expected = (process.base_bytes or 0) + sum(replica.load.memory_bytes for replica in loaded)
        try:
            used = private_memory(process.child.process.pid)
        except OSError:
            # It has just ended.
            return ""
        if used <= _GROWTH * expected + _SLACK_BYTES:
            return ""
        models = format_count(len(loaded), "model")
        return f"it has {used >> 20} MiB of memory, its {models} took {expected >> 20} MiB"

    def keep_apart(self, model: Deployment) -> None:
        """Load others into other processes while the load of this model, which is slow, goes on."""
        for process in self.processes:
            if process.timer is not None and process.group.packs and process.group.has(model.number):
                process.slow = process.timer.current

    async def _end(self, process: DeviceProcess) -> None:
        process.ended = True
        if process.child is not None:
            await process.child.end(_END_TIMEOUT_S)
            process.child = None
        self._forget(process)

    def _forget(self, process: DeviceProcess) -> None:
        process.ended = True
        if process in self.processes:
            self.processes.remove(process)
            self.replicas.leave(process.group)

    async def _start(self, process: DeviceProcess) -> None:
        if process.ended:
            return
        first = process.group.models[0]
        multiplies = any(model.framework not in _OWN_ALGEBRA for model in process.group.models)
        child = await Child.start(
            "device process",
            "stoker.device.process",
            SUPERVISOR_END,
            lambda _, message: self._on_message(process, message),
            lambda child: self._on_exit(process, child),
            # Only entry scripts have variables of their own, and each has a process of its own.
            interpreter=first.interpreter,
            defaults={} if multiplies else ONE_BLAS_THREAD,
            variables=_PACKING if process.group.packs else first.environment_variables,
        )
        if process not in self.processes:
            # Its last model was unloaded while it was starting.
            await child.end(_END_TIMEOUT_S, busy=True)
            return
        process.child, process.closed, process.base_bytes = child, "", None
        process.timer = LoadTimer(
            process.group.models,
            lambda model: self._on_late(process, model),
            asyncio.get_running_loop().call_later,
        )
        # Callers wait for models that were served before, and for those that are loaded on demand.
        yields = process.quiet and not process.loaded and not first.on_demand
        niceness = yield_cores(child.process.pid) if yields else None
        start = StartDevice(
            name=process.group.short_name,
            page=process.group.page,
            device=process.group.device,
            yields=yields,
            niceness=niceness,
            models=tuple(process.group.models),
            device_batches=self._device_batches,
            log=log_settings(),
            packs=process.group.packs,
            server=self._server if first.model_config else None,
        )
        child.send(start, [self._metrics_fd, self._turns_fd])

    def _on_message(self, process: DeviceProcess, message: FromDevice) -> None:
        match message:
            case DeviceChosen(device, description, reason):
                process.report = DeviceReport(device, description, reason)
            case Loaded():
                if process.failure is None:
                    self._on_loaded_in_time(process, message)
            case BatchingStopped(number, isolation):
                self._on_batching_stopped(process, number, isolation)
            case Unloaded(number):
                process.unloading.discard(number)
                self._changes.notify()
            case Failed(text, code, exit_code, number):
                self._on_failed(process, number, ReportedFailure(text, code, exit_code))
            case _:
                assert_never(message)

    def _on_batching_stopped(self, process: DeviceProcess, number: int, isolation: RowIsolation) -> None:
        """The finding of one replica holds for all replicas, and for processes that replace them."""
        if not process.group.has(number):
            return
        model = process.group.model(number)
        self.replicas.change_isolation(model, isolation)
        for other in self.processes:
            loaded = (replica.model.number for replica in self.replicas.in_group(other.group))
            if other.child is not None and number in loaded:
                other.child.send(StopBatching(number))
        self._on_isolation_changed(model, isolation)

    def _on_loaded_in_time(self, process: DeviceProcess, message: Loaded) -> None:
        assert process.timer is not None, "it began with the process"
        process.timer.next()
        if process.group.has(message.number):
            self._on_model_loaded(process, message)

    def _on_model_loaded(self, process: DeviceProcess, message: Loaded) -> None:
        assert process.child is not None, "it is alive"
        assert process.report is not None, "it says which device it uses before it loads"
        try:
            _check_signature(process.group.model(message.number), message.signature)
            load = self._with_known_isolation(process.child, message)
            replica = self.replicas.add(process.group, load, process.report.device)
        except OperatorError as error:
            self._refuse(process, message.number, error)
            return
        process.loaded.add(message.number)
        if process.base_bytes is None:
            with suppress(OSError):
                used = private_memory(process.child.process.pid)
                process.base_bytes = max(0, used - message.memory_bytes)
        self._note_ready(replica.model)
        self._on_loaded(process, replica)
        self._changes.notify()

    def _on_failed(self, process: DeviceProcess, number: int | None, error: OperatorError) -> None:
        if number is None or process.failure is not None:
            process.failure = process.failure or error
            return
        assert process.timer is not None, "it began with the process"
        process.timer.next()
        self._drop(process, number, error)

    def _refuse(self, process: DeviceProcess, number: int, error: OperatorError) -> None:
        """Remove a model that is loaded, but cannot be served."""
        assert process.child is not None, "it is alive"
        if len(process.group.members) == 1:
            process.failure = error
            process.child.kill()
            return
        process.unloading.add(number)
        process.child.send(UnloadModel(number))
        self._drop(process, number, error)

    def _drop(self, process: DeviceProcess, number: int, error: OperatorError) -> None:
        """Let a process continue without a model that it could not load, if it has others."""
        if not process.group.has(number):
            return
        model = process.group.model(number)
        if number not in process.loaded:
            self._give_up(process, model, error)
        elif len(process.group.members) > 1:
            self._set_apart(process, model, f"it could not be loaded again: {error}")
        else:
            # It was served before, so the process is restarted until it is loaded again.
            process.failure = error
            if process.child is not None:
                process.child.kill()

    def _give_up(self, process: DeviceProcess, model: Deployment, error: OperatorError) -> None:
        """Let a process continue without a model that could not be loaded."""
        self.failed[model.number] = error
        process.group.remove(model)
        self._changes.notify()

    def _set_apart(self, process: DeviceProcess, model: Deployment, reason: str) -> None:
        """Give a model that was served a process of its own: in the one that it shares it has failed."""
        taken = {other.group.page for other in self.processes}
        page = next((page for page in range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE) if page not in taken), None)
        if page is None:
            logger.warning(
                "%s stays with others, because there are too many processes: %s", model.name, reason
            )
            return
        place = next(place for member, place in process.group.members if member.number == model.number)
        process.group.remove(model)
        process.loaded.discard(model.number)
        own = Group(page, process.group.device, [(model, place)], most=1)
        apart = DeviceProcess(own, process.quiet, loaded={model.number})
        self.processes.append(apart)
        self.replicas.join(own)
        logger.error("%s version %d gets a process of its own: %s", model.name, model.version, reason)
        self._background.start_later(
            f"the device process of {own}", apart.backoff, lambda: self._start(apart)
        )

    def _with_known_isolation(self, child: DeviceChild, load: Loaded) -> Loaded:
        """The report of a load, corrected by what an earlier process has found out."""
        isolation = self.replicas.found_isolation(load.number)
        if isolation is None:
            return load
        child.send(StopBatching(load.number))
        return with_isolation(load, isolation)

    def _on_late(self, process: DeviceProcess, model: Deployment) -> None:
        """Give up a model that takes too long to load; it may hang in a driver, where it cannot be interrupted."""
        if process.child is None or process.ended:
            return
        assert process.timer is not None, "it has run out"
        name, version = model.name, model.version
        late = f"{name} version {version} was not loaded within {model.load_timeout_s:g} s"
        logger.error("%s; these are the stacks of its process:", late)
        advice = (
            "the log has the stacks of its threads, which show what they waited for; if it only needs longer, raise "
            "load_timeout_s"
        )
        self._crashes.count_hang(model)
        if process.group.packs and process.timer.is_last and self.replicas.in_group(process.group):
            # All others serve.
            process.closed = f"{name} hangs while it is loaded"
            process.child.dump_stacks()
            self._drop(process, model.number, LoadTimeout(f"{late}; {advice}"))
            return
        process.failure = LoadTimeout(f"{late}, so its process was ended; {advice}")
        process.child.dump_stacks_and_kill()

    def _on_exit(self, process: DeviceProcess, child: DeviceChild) -> None:
        current = None
        if process.timer is not None:
            current = process.timer.current
            process.timer.stop()
        process.child = None
        process.unloading.clear()
        if self._background.stopping or process.ended:
            self._changes.notify()
            return
        for replica in self.replicas.remove(process.group):
            self._note_ready(replica.model)
            self._on_lost(replica)
        self._note_crash(process, child, current)
        self._give_up_failed_models(process, child, current)
        self._set_crashing_models_apart(process)
        if not process.group.members:
            self._forget(process)
            self._changes.notify()
            return
        reason = "" if process.failure is None else str(process.failure)
        process.failure = None
        self._page.count_restart("device")
        self._background.restart(
            f"the device process of {process.group}",
            child,
            process.backoff,
            lambda: self._start(process),
            reason,
        )
        self._changes.notify()

    def _note_crash(self, process: DeviceProcess, child: DeviceChild, current: Deployment | None) -> None:
        """Record which models may have crashed a shared process: the one that was being loaded, or those that ran."""
        if child.is_blameless or len(process.group.members) < 2:
            return
        self._crashes.count_crash(process.group, current)

    def _set_crashing_models_apart(self, process: DeviceProcess) -> None:
        for model in process.group.models:
            if len(process.group.members) > 1 and self._crashes.are_frequent(model):
                self._set_apart(process, model, "it ran, or was being loaded, when the shared one crashed")

    def _give_up_failed_models(
        self, process: DeviceProcess, child: DeviceChild, current: Deployment | None
    ) -> None:
        """After a process has ended while it loaded a model for the first time, give up this model, or all such."""
        failure = process.failure or LoadFailed(
            f"the device process {child.describe_exit()} while it loaded "
            f"{process.group if current is None else current.name}"
        )
        for model in process.group.models:
            # Before it has a device, the failure is not that of any one model.
            blamed = process.report is None or current is None or current.number == model.number
            if blamed and model.number not in process.loaded:
                self._give_up(process, model, failure)

    def _note_ready(self, model: Deployment) -> None:
        same_slot = [replica for replica in self.replicas.all() if replica.model.slot == model.slot]
        self._page.model(model.slot).set_ready_replicas(len(same_slot))


def _check_signature(model: Deployment, signature: Signature) -> None:
    """Refuse a model whose settings do not fit its signature, which is known only now."""
    if model.cache_bytes and signature.keeps_state:
        raise InvalidSettings(
            f"{model.name} keeps state between requests, so that the same one may have another answer: "
            "leave cache_mb out"
        )
    if model.image is not None:
        try:
            image_layout(model.image, signature)
        except InvalidSettings as error:
            raise InvalidSettings(f"{model.name}: {error}") from None
