"""The device processes of a server: started, watched and restarted, each with the models of a group."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

from stoker.control.device_messages import (
    SUPERVISOR_END,
    AddLane,
    BatchingStopped,
    DeviceChosen,
    Failed,
    FromDevice,
    Loaded,
    StartDevice,
    StopBatching,
    Unloaded,
    UnloadModel,
)
from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, OperatorError
from stoker.supervisor.children import Child
from stoker.supervisor.device_process import DeviceChild, DeviceProcess, ReportedFailure
from stoker.supervisor.groups import group
from stoker.supervisor.load_timer import LoadTimer
from stoker.supervisor.replicas import Replica, Replicas
from stoker.supervisor.start_up import DeviceReport
from stoker.system.logs import log_settings
from stoker.system.processes import yield_cores
from stoker.wire.images import image_layout

if TYPE_CHECKING:
    from stoker.deployment import Deployment
    from stoker.supervisor.background import Supervision
    from stoker.tensors import Signature
    from stoker.verdict import Verdict

__all__ = ["DeviceProcesses"]

logger = logging.getLogger(__name__)

_END_TIMEOUT_S = 5.0


class DeviceProcesses:
    """All device processes.

    Attributes:
        processes: Those that run or will be restarted.
        replicas: The models that they have loaded.
    """

    def __init__(
        self,
        supervision: Supervision,
        on_loaded: Callable[[DeviceProcess, Replica], None],
        on_lost: Callable[[Replica], None],
        on_verdict: Callable[[Deployment, Verdict], None],
        device_batches: int | None = None,
    ) -> None:
        """Create it without processes.

        Args:
            supervision: Shared parts of the supervision.
            on_loaded: Called when a replica can be used.
            on_lost: Called when a replica cannot be used any more.
            on_verdict: Called when the verdict on whether a model's rows may share batches has changed.
            device_batches: How many batches a device runs concurrently; None to find out.
        """
        self.processes: list[DeviceProcess] = []
        self.replicas = Replicas([])
        self._metrics_fd, self._page = supervision.metrics_fd, supervision.page
        self._turns_fd, self._device_batches = supervision.turns_fd, device_batches
        self._background, self._changes = supervision.background, supervision.changes
        self._on_loaded = on_loaded
        self._on_lost = on_lost
        self._on_verdict = on_verdict
        self._verdicts: dict[int, Verdict] = {}
        """By a model's number what was found out about it while it served, which its later processes must respect."""

    async def start(self, models: Sequence[Deployment], *, quiet: bool = False) -> list[DeviceProcess]:
        """Start the processes for models that are loaded together; returns before they are loaded.

        Raises:
            InvalidSettings: There would be too many processes.
        """
        taken = [process.group.page for process in self.processes]
        started = [DeviceProcess(formed, quiet) for formed in group(models, taken)]
        for process in started:
            self.processes.append(process)
            self.replicas.join(process.group)
        for process in started:
            await self._start(process)
        return started

    async def unload(self, model: Deployment) -> None:
        """Remove a model from all processes, and end those that have no other model.

        No frontend may use it any more. Returns when it is unloaded everywhere.
        """
        for process in list(self.processes):
            if not process.group.has(model.number) and model.number not in process.failed:
                continue
            had = process.group.has(model.number)
            process.group.remove(model)
            if not process.group.members:
                await self._end(process)
                continue
            self.replicas.unload(process.group, model)
            if had and process.child is not None:
                process.unloading.add(model.number)
                process.child.send(UnloadModel(model.number))
        await self._changes.until(
            lambda: not any(model.number in process.unloading for process in self.processes)
        )
        self._verdicts.pop(model.number, None)
        self._note_ready(model)

    def attach(self, process: DeviceProcess, lane: AddLane, fds: Sequence[int]) -> None:
        """Pass a process its ends of an arena and a doorbell."""
        if process.child is not None:
            process.child.send(lane, fds)

    def is_loading(self, process: DeviceProcess) -> bool:
        """Whether a running process has not loaded all its models yet."""
        return len(self.replicas.in_group(process.group)) < len(process.group.members)

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
        child = await Child.start(
            "device process",
            "stoker.device.process",
            SUPERVISOR_END,
            lambda _, message: self._on_message(process, message),
            lambda child: self._on_exit(process, child),
            # Only entry scripts have variables of their own, and each has a process of its own.
            interpreter=first.interpreter,
            variables=first.environment_variables,
        )
        if process not in self.processes:
            # Its last model was unloaded while it was starting.
            await child.end(_END_TIMEOUT_S, busy=True)
            return
        process.child = child
        process.timer = LoadTimer(
            process.group.models,
            lambda model: self._on_late(process, model),
            asyncio.get_running_loop().call_later,
        )
        niceness = yield_cores(child.process.pid) if process.quiet else None
        start = StartDevice(
            name=process.group.short_name,
            page=process.group.page,
            device=process.group.device,
            yields=process.quiet,
            niceness=niceness,
            models=tuple(process.group.models),
            device_batches=self._device_batches,
            log=log_settings(),
        )
        child.send(start, [self._metrics_fd, self._turns_fd])

    def _on_message(self, process: DeviceProcess, message: FromDevice) -> None:
        match message:
            case DeviceChosen(device, description, reason):
                process.report = DeviceReport(device, description, reason)
            case Loaded():
                if process.failure is None:
                    self._on_loaded_in_time(process, message)
            case BatchingStopped(number, verdict):
                self._on_verdict_changed(process, number, verdict)
            case Unloaded(number):
                process.unloading.discard(number)
                self._changes.tell()
            case Failed(text, code, exit_code, number):
                self._on_failed(process, number, ReportedFailure(text, code, exit_code))
            case _:
                assert_never(message)

    def _on_verdict_changed(self, process: DeviceProcess, number: int, verdict: Verdict) -> None:
        """A verdict of one replica holds for all replicas, and for processes that replace them."""
        if not process.group.has(number):
            return
        model = process.group.model(number)
        self._verdicts[number] = verdict
        self.replicas.change_verdict(model, verdict)
        for other in self.processes:
            loaded = (replica.model.number for replica in self.replicas.in_group(other.group))
            if other.child is not None and number in loaded:
                other.child.send(StopBatching(number))
        self._on_verdict(model, verdict)

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
            replica = self.replicas.add(
                process.group,
                message.number,
                self._heeded(process.child, message),
                process.report.device,
                load_s=message.load_s,
                warm_up_s=message.warm_up_s,
            )
        except OperatorError as error:
            self._refuse(process, message.number, error)
            return
        self._note_loaded(process)
        self._note_ready(replica.model)
        self._on_loaded(process, replica)
        self._changes.tell()

    def _note_loaded(self, process: DeviceProcess) -> None:
        process.loaded |= len(self.replicas.in_group(process.group)) == len(process.group.members)

    def _on_failed(self, process: DeviceProcess, number: int | None, error: OperatorError) -> None:
        if number is None or process.failure is not None:
            process.failure = process.failure or error
            return
        assert process.timer is not None, "it began with the process"
        process.timer.next()
        if not process.group.has(number):
            return
        if process.loaded:
            # It was loaded before, so the process is restarted with all its models until this one loads again.
            process.failure = error
            if process.child is not None:
                process.child.kill()
            return
        self._give_up(process, process.group.model(number), error)

    def _refuse(self, process: DeviceProcess, number: int, error: OperatorError) -> None:
        """Remove a model that is loaded, but cannot be served."""
        assert process.child is not None, "it is alive"
        if process.loaded or len(process.group.members) == 1:
            process.failure = error
            process.child.kill()
            return
        process.unloading.add(number)
        process.child.send(UnloadModel(number))
        self._give_up(process, process.group.model(number), error)

    def _give_up(self, process: DeviceProcess, model: Deployment, error: OperatorError) -> None:
        """Let a process continue without a model that could not be loaded; it ends by itself if it has no other."""
        process.failed[model.number] = error
        process.group.remove(model)
        if process.group.members:
            self._note_loaded(process)
        self._changes.tell()

    def _heeded(self, child: DeviceChild, message: Loaded) -> Signature:
        """The signature of a loaded model, corrected by what an earlier process has found out."""
        verdict = self._verdicts.get(message.number)
        if verdict is None:
            return message.signature
        child.send(StopBatching(message.number))
        return dataclasses.replace(message.signature, verdict=verdict)

    def _on_late(self, process: DeviceProcess, model: Deployment) -> None:
        """Give up a model that takes too long to load; it may hang in a driver, where it cannot be interrupted."""
        if process.child is None or process.ended:
            return
        name, version = model.name, model.version
        late = f"{name} version {version} was not loaded within {model.load_timeout_s:g} s"
        logger.error("%s; these are the stacks of its process:", late)
        process.failure = LoadTimeout(
            f"{late}, so its process was ended; the log has the stacks of its threads, which show what they waited "
            "for; if it only needs longer, raise load_timeout_s"
        )
        process.child.kill_where_it_hangs()

    def _on_exit(self, process: DeviceProcess, child: DeviceChild) -> None:
        if process.timer is not None:
            process.timer.stop()
        process.child = None
        process.unloading.clear()
        if self._background.stopping or process.ended:
            self._changes.tell()
            return
        for replica in self.replicas.remove(process.group):
            self._note_ready(replica.model)
            self._on_lost(replica)
        if not process.loaded:
            self._give_up_what_failed(process, child)
        if not process.group.members:
            self._forget(process)
            self._changes.tell()
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
        self._changes.tell()

    def _give_up_what_failed(self, process: DeviceProcess, child: DeviceChild) -> None:
        """After a process has ended while loading, give up the model that it was loading, or all of them."""
        if process.failed and not process.group.members:
            return
        current = None if process.timer is None else process.timer.current
        failure = process.failure or LoadFailed(
            f"the device process {child.describe_exit()} while it loaded "
            f"{process.group if current is None else current.name}"
        )
        # Before it has a device, the failure is not that of any one model.
        one = process.report is not None and current is not None and process.group.has(current.number)
        for model in [current] if one and current is not None else process.group.models:
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
