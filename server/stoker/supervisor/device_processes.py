"""The device processes of a server: started, watched and restarted, each with the models of a group."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, assert_never

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
    ToDevice,
    Unloaded,
    UnloadModel,
)
from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, OperatorError
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE
from stoker.supervisor.catalogue import DeviceReport, ModelReport
from stoker.supervisor.children import Backoff, Child
from stoker.system.logs import log_settings
from stoker.system.processes import yield_cores
from stoker.tensors import RowIsolation, Signature
from stoker.wire.images import image_layout

if TYPE_CHECKING:
    from stoker.supervisor.background import Supervision

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replica:
    """A model that one device process has loaded.

    Attributes:
        generation: A number that is unique to this load.
    """

    model: Deployment
    signature: Signature
    device: str
    generation: int
    load_s: float
    warm_up_s: float
    max_batch_rows: int


class Replicas:
    """The loaded replicas, over all restarts of device processes."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._loaded: dict[Group, list[Replica]] = {group: [] for group in groups}
        self._generation = 0

    def join(self, group: Group) -> None:
        """Add the group of a new device process."""
        self._loaded[group] = []

    def leave(self, group: Group) -> None:
        """Remove a device process that will not be restarted."""
        del self._loaded[group]

    def add(
        self,
        group: Group,
        number: int,
        signature: Signature,
        device: str,
        *,
        load_s: float,
        warm_up_s: float,
        max_batch_rows: int,
    ) -> Replica:
        """Record that a group's device process has loaded the model with this number.

        Raises:
            LoadFailed: Its tensors differ from those of the replicas that are loaded already.
        """
        model = group.model(number)
        for other in self.of(model):
            if _callers_view(other.signature) != _callers_view(signature):
                raise LoadFailed(
                    f"the replicas of {model.name} differ: {signature} on {device}, but "
                    f"{other.signature} on {other.device}; if the model has changed, start the server anew"
                )
        self._generation += 1
        replica = Replica(model, signature, device, self._generation, load_s, warm_up_s, max_batch_rows)
        self._loaded[group].append(replica)
        return replica

    def change_isolation(self, model: Deployment, isolation: RowIsolation) -> None:
        """Record a new finding on whether a model's rows may share batches."""
        for group, loaded in self._loaded.items():
            self._loaded[group] = [
                dataclasses.replace(
                    replica, signature=dataclasses.replace(replica.signature, isolation=isolation)
                )
                if replica.model.number == model.number
                else replica
                for replica in loaded
            ]

    def remove(self, group: Group) -> list[Replica]:
        """Record that a group's device process has ended; returns its replicas."""
        lost, self._loaded[group] = self._loaded[group], []
        return lost

    def unload(self, group: Group, model: Deployment) -> None:
        """Record that a group's device process does not serve a model any more."""
        self._loaded[group] = [
            replica for replica in self._loaded[group] if replica.model.number != model.number
        ]

    def is_complete(self, model: Deployment) -> bool:
        """Whether every replica of a model is loaded."""
        return len(self.of(model)) == len(model.devices)

    def in_group(self, group: Group) -> list[Replica]:
        """The replicas in a group's device process."""
        return list(self._loaded[group])

    def of(self, model: Deployment) -> list[Replica]:
        """The replicas of one model."""
        return [replica for replica in self.all() if replica.model.number == model.number]

    def report(self, model: Deployment) -> ModelReport:
        """The report for the operator on a model that is loaded."""
        replicas = self.of(model)
        return ModelReport(
            model,
            replicas[0].signature,
            [replica.device for replica in replicas],
            max(replica.load_s for replica in replicas),
            max(replica.warm_up_s for replica in replicas),
            min(replica.max_batch_rows for replica in replicas),
        )

    def all(self) -> list[Replica]:
        """All loaded replicas."""
        return [replica for replicas in self._loaded.values() for replica in replicas]


def _callers_view(signature: Signature) -> Signature:
    """The signature as callers see it: replicas may differ in what only the device process uses for batching."""
    if signature.script is None:
        return signature
    script = dataclasses.replace(signature.script, batching="none", batching_reason="")
    return dataclasses.replace(signature, script=script)


@dataclass(eq=False, slots=True)
class Group:
    """The models of one device process.

    Attributes:
        members: Its models in the order of the settings, each with the number of its replica, from 0.
    """

    page: int
    device: str
    members: list[tuple[Deployment, int]] = field(default_factory=list)

    @property
    def models(self) -> list[Deployment]:
        """Its models."""
        return [model for model, _ in self.members]

    @property
    def short_name(self) -> str:
        """The name of its process in the log: its model, or the device if it has several models."""
        return str(self) if len(self.members) == 1 else self.device

    def model(self, number: int) -> Deployment:
        """Its model with this number."""
        return next(model for model in self.models if model.number == number)

    def has(self, number: int) -> bool:
        """Whether a model with this number is among them."""
        return any(model.number == number for model in self.models)

    def remove(self, model: Deployment) -> None:
        """Remove a model."""
        self.members = [member for member in self.members if member[0].number != model.number]

    def __str__(self) -> str:
        return ", ".join(_named(model, replica) for model, replica in self.members)


def group(models: Sequence[Deployment], taken: Collection[int] = ()) -> list[Group]:
    """Divide models that are loaded together into device processes.

    The replicas of a model run in different processes. ONNX models and SavedModels share the first process of a
    device, those that have a second replica there its second one, and so on. An entry script gets processes of its
    own: it reads process-wide state (AZUREML_MODEL_DIR, sys.path, helper modules of any name), and its Python code
    must not hold the interpreter lock while other models need it. The same is true of a model of scikit-learn, whose
    file is code too, of a model of PyTorch, whose threads and precision are the process's, of a model with a virtual
    environment, and of a SavedModel with process-wide settings of TensorFlow.

    Args:
        taken: Pages of the metrics that other device processes use.
    """
    pages = [page for page in range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE) if page not in taken]
    groups: dict[Hashable, Group] = {}
    for model in models:
        devices = model.devices
        owner = model.number if _alone(model) else None
        for replica, device in enumerate(devices):
            key = (owner, device, devices[:replica].count(device))
            groups.setdefault(key, Group(0, device)).members.append((model, replica))
    if len(groups) > len(pages):
        raise InvalidSettings(
            f"at most {len(pages) + len(taken)} device processes can run, these models ask for "
            f"{len(groups) + len(taken)}; lower replicas, or spread the models over several servers"
        )
    for formed, page in zip(groups.values(), pages, strict=False):
        formed.page = page
    return list(groups.values())


def _alone(model: Deployment) -> bool:
    framework, acceleration = model.framework, model.acceleration
    if framework in ("script", "sklearn", "torch") or model.interpreter != Path(sys.executable):
        return True
    return framework == "tensorflow" and (acceleration.memory_mb, acceleration.precision) != (None, "tf32")


def _named(model: Deployment, replica: int) -> str:
    count = len(model.devices)
    return model.name if count == 1 else f"{model.name} (replica {replica + 1} of {count})"


_FIRST_SIGN_S: Final = 10


class _Timer(Protocol):
    def cancel(self) -> None:
        """Let it not run out."""


class LoadTimer:
    """Reports when a device process takes too long to load a model.

    Models are loaded one after the other. The time of each begins when the previous one is loaded, that of the
    first when the process is started, so it includes imports. While a load takes long, the log says so at growing
    intervals.
    """

    def __init__(
        self,
        models: Sequence[Deployment],
        on_late: Callable[[Deployment], None],
        call_later: Callable[[float, Callable[[], None]], _Timer],
    ) -> None:
        self._left = deque(models)
        self._on_late = on_late
        self._call_later = call_later
        self._timers: list[_Timer] = []
        self._begin()

    @property
    def current(self) -> Deployment | None:
        """The model that is being loaded; None when all are."""
        return self._left[0] if self._left else None

    def next(self) -> None:
        """Record that a model is loaded or has failed, and continue with the next one."""
        self._left.popleft()
        self._begin()

    def stop(self) -> None:
        """Stop; nothing is being loaded any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _begin(self) -> None:
        self.stop()
        if self._left:
            model = self._left[0]
            self._timers = [self._call_later(model.load_timeout_s, lambda: self._on_late(model))]
            self._tell_later(model, 0, _FIRST_SIGN_S)

    def _tell_later(self, model: Deployment, elapsed_s: int, then_s: int) -> None:
        """Log after `then_s` seconds of loading that it is still in progress."""

        def tell() -> None:
            logger.info("%s version %d has been loading for %d s", model.name, model.version, then_s)
            self._tell_later(model, then_s, 2 * then_s)

        if then_s < model.load_timeout_s:
            # The delay that was waited for has passed.
            self._timers[1:] = [self._call_later(then_s - elapsed_s, tell)]


DeviceChild = Child[ToDevice, FromDevice]


@dataclass(eq=False)
class DeviceProcess:
    """One device process, over all its restarts.

    Attributes:
        timer: The time limit of the model that it is loading.
        failure: Why it ended or could not be started.
        failed: By number the models that it could not load at first, and has removed.
        loaded: Whether it has loaded all its models once; only then it is restarted with all of them when it ends.
        unloading: Numbers of the models that it was told to unload.
    """

    group: Group
    quiet: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    child: DeviceChild | None = None
    timer: LoadTimer | None = None
    report: DeviceReport | None = None
    failure: OperatorError | None = None
    failed: dict[int, OperatorError] = field(default_factory=dict)
    loaded: bool = False
    ended: bool = False
    unloading: set[int] = field(default_factory=set)


class ReportedFailure(OperatorError):
    """A failure that a device process reported, with its error code and exit code."""

    def __init__(self, message: str, code: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the class attribute is the default
        self.exit_code = exit_code  # type: ignore[misc]  # the class attribute is the default


_END_TIMEOUT_S = 5.0


class DeviceProcesses:
    """All device processes."""

    def __init__(
        self,
        supervision: Supervision,
        on_loaded: Callable[[DeviceProcess, Replica], None],
        on_lost: Callable[[Replica], None],
        on_isolation_changed: Callable[[Deployment, RowIsolation], None],
        device_batches: int | None = None,
        server: ServerAddress | None = None,
    ) -> None:
        """Create it without processes.

        Args:
            server: Where models reach this server that may call others.
            device_batches: How many batches a device runs concurrently; None to find out.
        """
        self.processes: list[DeviceProcess] = []
        self.replicas = Replicas([])
        self._metrics_fd, self._page = supervision.metrics_fd, supervision.page
        self._turns_fd, self._device_batches = supervision.turns_fd, device_batches
        self._server = server
        self._background, self._changes = supervision.background, supervision.changes
        self._on_loaded = on_loaded
        self._on_lost = on_lost
        self._on_isolation_changed = on_isolation_changed
        self._isolations: dict[int, RowIsolation] = {}
        """By a model's number what was found out about it while it served, which its later processes must respect."""

    async def start(self, models: Sequence[Deployment], *, quiet: bool = False) -> list[DeviceProcess]:
        """Start the processes for models that are loaded together; returns before they are loaded."""
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
        self._isolations.pop(model.number, None)
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
        self._isolations[number] = isolation
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
            replica = self.replicas.add(
                process.group,
                message.number,
                self._with_known_isolation(process.child, message),
                process.report.device,
                load_s=message.load_s,
                warm_up_s=message.warm_up_s,
                max_batch_rows=message.max_batch_rows,
            )
        except OperatorError as error:
            self._refuse(process, message.number, error)
            return
        self._note_loaded(process)
        self._note_ready(replica.model)
        self._on_loaded(process, replica)
        self._changes.notify()

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
        self._changes.notify()

    def _with_known_isolation(self, child: DeviceChild, message: Loaded) -> Signature:
        """The signature of a loaded model, corrected by what an earlier process has found out."""
        isolation = self._isolations.get(message.number)
        if isolation is None:
            return message.signature
        child.send(StopBatching(message.number))
        return dataclasses.replace(message.signature, isolation=isolation)

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
        process.child.dump_stacks_and_kill()

    def _on_exit(self, process: DeviceProcess, child: DeviceChild) -> None:
        if process.timer is not None:
            process.timer.stop()
        process.child = None
        process.unloading.clear()
        if self._background.stopping or process.ended:
            self._changes.notify()
            return
        for replica in self.replicas.remove(process.group):
            self._note_ready(replica.model)
            self._on_lost(replica)
        if not process.loaded:
            self._give_up_what_failed(process, child)
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
