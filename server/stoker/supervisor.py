"""The supervisor: one asyncio loop that starts, joins, watches, restarts and drains a server's processes.

It imports no framework. It owns the listening sockets, so a frontend that dies loses no connection that
waits in them, and it makes every arena and doorbell, so that a restarted process always gets fresh ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.arena import Arena, capacity_rows
from stoker.children import Backoff, Child
from stoker.control import Message
from stoker.deployment import Deployed
from stoker.errors import InvalidSettings, LoadFailed, OperatorError
from stoker.metrics import DEVICE_SLOTS, FIRST_DEVICE_PAGE, SUPERVISOR_PAGE, MetricMemory
from stoker.nvml import read_gpus
from stoker.settings import ServerSettings
from stoker.tensors import Signature

__all__ = ["DeviceReport", "ModelReport", "StartUp", "Supervisor", "bind"]

logger = logging.getLogger(__name__)

_GPU_POLL_S: Final = 2.0
_END_TIMEOUT_S: Final = 5.0
_LOADING_END_TIMEOUT_S: Final = 0.5
_DRAIN_TIMEOUT_S: Final = 30.0
_INTERRUPT_GRACE_S: Final = 0.2
# Wrappers such as timeout(1) send one request to stop to the process and again to its group.
_SAME_SIGNAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model that has been loaded."""

    deployed: Deployed
    signature: Signature
    load_s: float
    warm_up_s: float


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The device that a process chose, and why."""

    device: str
    description: str
    reason: str


@dataclass(frozen=True, slots=True)
class StartUp:
    """What is known once the server is ready for the first time."""

    devices: list[DeviceReport]
    models: list[ModelReport]
    elapsed_s: float


@dataclass(eq=False)
class _DeviceGroup:
    """The models of one device process, over all its restarts."""

    page: int
    models: list[Deployed]
    backoff: Backoff = field(default_factory=Backoff)
    child: Child | None = None
    report: DeviceReport | None = None
    loaded: dict[str, ModelReport] = field(default_factory=dict)
    failure: OperatorError | None = None


@dataclass(eq=False)
class _FrontendSlot:
    """One frontend, over all its restarts."""

    page: int
    sockets: list[socket.socket]
    backoff: Backoff = field(default_factory=Backoff)
    child: Child | None = None
    started: bool = False
    attached: set[tuple[str, int]] = field(default_factory=set)


class _ReportedFailure(OperatorError):
    """A failure that a device process reported, with the exit code that it asked for."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # the class attribute is the default


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Open `count` listening sockets on one address and port (SO_REUSEPORT: the kernel spreads connections).

    Raises:
        InvalidSettings: The address is unknown or the port is taken.
    """
    sockets: list[socket.socket] = []
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if port:
            # SO_REUSEPORT would let a second server of the same user share the port: make sure that it is
            # free.
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        for _ in range(count):
            sock = socket.socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            # With port 0 the first socket chooses the port for all.
            address = (address[0], sock.getsockname()[1], *address[2:])
        for sock in sockets:
            sock.listen(2048)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise InvalidSettings(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --host and --port"
        ) from error
    return sockets


class Supervisor:
    """Runs one server."""

    def __init__(
        self,
        settings: ServerSettings,
        models: Sequence[Deployed],
        keys_dir: Path,
        sockets: Sequence[socket.socket],
        on_ready: Callable[[StartUp], None],
    ) -> None:
        self._settings = settings
        self._models = list(models)
        self._keys_dir = keys_dir
        self._on_ready = on_ready
        self._begun_s = time.monotonic()
        self._metrics_fd = MetricMemory.create()
        self._page = MetricMemory(self._metrics_fd).page(SUPERVISOR_PAGE)
        self._groups = [
            _DeviceGroup(FIRST_DEVICE_PAGE + index, group) for index, group in enumerate(_group(self._models))
        ]
        self._frontends = [_FrontendSlot(index, [sock]) for index, sock in enumerate(sockets)]
        self._generation = 0
        self._generations: dict[str, int] = {}
        self._announced = False
        self._stopping = asyncio.Event()
        self._stop_grace_s = 0.0
        self._asked_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until a signal asks to stop.

        Raises:
            OperatorError: A model or device could not be used at start-up.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, self._settings.drain_grace_s)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, _INTERRUPT_GRACE_S)
        try:
            for group in self._groups:
                await self._start_device(group)
            for slot in self._frontends:
                await self._start_frontend(slot)
            self._spawn(self._poll_gpus())
            await self._stopping.wait()
            self._raise_failure()
            await self._drain()
        finally:
            await self._end_all()

    def _on_signal(self, grace_s: float) -> None:
        now_s = time.monotonic()
        if self._stopping.is_set() and now_s - self._asked_s < _SAME_SIGNAL_S:
            return
        self._asked_s = now_s
        if self._stopping.is_set():
            logger.warning("asked to stop a second time: ending at once")
            for child in self._children():
                child.kill()
            os._exit(1)
        self._stop_grace_s = grace_s if self._announced else 0.0
        self._stopping.set()

    def _children(self) -> list[Child]:
        children = [*(group.child for group in self._groups), *(slot.child for slot in self._frontends)]
        return [child for child in children if child is not None]

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _raise_failure(self) -> None:
        for group in self._groups:
            if group.failure is not None:
                raise group.failure

    # --- device processes ---

    async def _start_device(self, group: _DeviceGroup) -> None:
        group.loaded.clear()
        child = await Child.start(
            "device process",
            "stoker.device",
            lambda _, message: self._on_device_message(group, message),
            lambda child: self._on_device_exit(group, child),
        )
        group.child = child
        child.channel.send(
            "start",
            [self._metrics_fd],
            page=group.page,
            device=self._settings.device,
            threads=self._settings.device_threads,
            models=[_model_message(model) for model in group.models],
        )

    def _on_device_message(self, group: _DeviceGroup, message: Message) -> None:
        match message["kind"]:
            case "device":
                group.report = DeviceReport(message["device"], message["description"], message["reason"])
            case "loaded":
                deployed = next(model for model in group.models if model.servable.name == message["model"])
                report = ModelReport(
                    deployed,
                    Signature.from_json(message["signature"]),
                    message["load_s"],
                    message["warm_up_s"],
                )
                group.loaded[message["model"]] = report
                self._generation += 1
                self._generations[message["model"]] = self._generation
                for slot in self._frontends:
                    if slot.started:
                        self._attach(group, report, slot)
            case "failed":
                group.failure = _ReportedFailure(message["message"], message["exit_code"])

    def _on_device_exit(self, group: _DeviceGroup, child: Child) -> None:
        group.child = None
        if self._stopping.is_set():
            return
        for slot in self._frontends:
            if slot.child is not None:
                for name in group.loaded:
                    slot.child.channel.send("detach", model=name, generation=self._generations[name])
        names = ", ".join(model.servable.name for model in group.models)
        if not self._announced:
            if group.failure is None:
                group.failure = LoadFailed(
                    f"the device process {child.describe_exit()} while it loaded {names}"
                )
            self._stopping.set()
            return
        delay_s = group.backoff.delay_s(child.lived_s)
        reason = f" ({group.failure})" if group.failure is not None else ""
        group.failure = None
        logger.error(
            "the device process of %s %s%s; starting it again in %g s",
            names,
            child.describe_exit(),
            reason,
            delay_s,
        )
        self._page.count_restart("device")
        self._spawn(self._restart(delay_s, lambda: self._start_device(group)))

    # --- frontends ---

    async def _start_frontend(self, slot: _FrontendSlot) -> None:
        slot.started = False
        slot.attached.clear()
        child = await Child.start(
            "frontend",
            "stoker.gateway.frontend",
            lambda _, message: self._on_frontend_message(slot, message),
            lambda child: self._on_frontend_exit(slot, child),
        )
        slot.child = child
        settings = self._settings
        keys = None
        if settings.primary_key or settings.secondary_key:
            keys = {
                "primary": settings.primary_key or settings.secondary_key,
                "secondary": settings.secondary_key or settings.primary_key,
            }
        child.channel.send(
            "start",
            [self._metrics_fd, *(sock.fileno() for sock in slot.sockets)],
            page=slot.page,
            auth=settings.auth,
            metrics_need_key=settings.metrics_auth,
            keys_dir=str(self._keys_dir),
            max_body_bytes=settings.max_body_bytes,
            services=[
                {
                    "name": model.servable.name,
                    "slot": model.slot,
                    "timeout_ms": settings.timeout_ms,
                    "keys": keys,
                }
                for model in self._models
            ],
        )

    def _on_frontend_message(self, slot: _FrontendSlot, message: Message) -> None:
        match message["kind"]:
            case "started":
                slot.started = True
                for group in self._groups:
                    for report in group.loaded.values():
                        self._attach(group, report, slot)
                # Only now: a frontend that replaces another one finds connections waiting.
                if slot.child is not None:
                    slot.child.channel.send("listen")
            case "attached":
                slot.attached.add((message["model"], message["generation"]))
                self._announce_if_ready()
            case "stopped" if message["cut_off"]:
                logger.warning("%d connections did not end in time and were cut off", message["cut_off"])

    def _on_frontend_exit(self, slot: _FrontendSlot, child: Child) -> None:
        slot.child = None
        slot.started = False
        if self._stopping.is_set():
            return
        delay_s = slot.backoff.delay_s(child.lived_s)
        logger.error("a frontend %s; starting it again in %g s", child.describe_exit(), delay_s)
        self._page.count_restart("frontend")
        self._spawn(self._restart(delay_s, lambda: self._start_frontend(slot)))

    async def _restart(self, delay_s: float, start: Callable[[], Any]) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        if not self._stopping.is_set():
            await start()

    # --- joining the two ---

    def _attach(self, group: _DeviceGroup, report: ModelReport, slot: _FrontendSlot) -> None:
        """Make an arena and a doorbell and give each side its end."""
        if group.child is None or slot.child is None:
            return
        name = report.deployed.servable.name
        capacity = capacity_rows(report.signature, report.deployed.servable.max_batch_rows)
        arena_fd = Arena.create(report.signature, capacity)
        near, far = socket.socketpair()
        with near, far:
            content = {"model": name, "signature": report.signature.to_json(), "capacity": capacity}
            group.child.channel.send("attach", [arena_fd, far.fileno()], **content)
            slot.child.channel.send(
                "attach", [arena_fd, near.fileno()], generation=self._generations[name], **content
            )
        os.close(arena_fd)

    def _announce_if_ready(self) -> None:
        if self._announced or len(self._generations) < len(self._models):
            return
        wanted = set(self._generations.items())
        if all(wanted <= slot.attached for slot in self._frontends):
            self._announced = True
            devices = [group.report for group in self._groups if group.report is not None]
            models = [report for group in self._groups for report in group.loaded.values()]
            self._on_ready(StartUp(devices, models, time.monotonic() - self._begun_s))

    # --- ending ---

    async def _drain(self) -> None:
        """Readiness off, a grace in which all is still answered, then the port closes and the last answers go out."""
        children = [slot.child for slot in self._frontends if slot.child is not None]
        for child in children:
            child.channel.send("drain")
        await asyncio.sleep(self._stop_grace_s)
        # While the supervisor holds them, the kernel would go on accepting connections that nobody serves.
        for slot in self._frontends:
            for sock in slot.sockets:
                sock.close()
        timeout_s = min(_DRAIN_TIMEOUT_S, self._settings.timeout_ms / 1000)
        for child in children:
            child.channel.send("stop", timeout_s=timeout_s)
        waits = [asyncio.ensure_future(child.process.wait()) for child in children]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s + _END_TIMEOUT_S)

    async def _end_all(self) -> None:
        self._stopping.set()
        for task in list(self._tasks):
            task.cancel()
        # A model that is being loaded does not hear that it should end.
        timeout_s = _END_TIMEOUT_S if self._announced else _LOADING_END_TIMEOUT_S
        await asyncio.gather(*(child.end(timeout_s) for child in self._children()))
        for slot in self._frontends:
            for sock in slot.sockets:
                sock.close()

    async def _poll_gpus(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                readings = await loop.run_in_executor(None, read_gpus)
            except OSError:
                return
            for gpu in readings[:DEVICE_SLOTS]:
                self._page.set_gpu(
                    gpu.index, gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.utilization_percent
                )
            await asyncio.sleep(_GPU_POLL_S)


def _group(models: Sequence[Deployed]) -> list[list[Deployed]]:
    """Which models share a device process.

    An entry script gets its own: it reads process-wide state (AZUREML_MODEL_DIR, sys.path, helper modules
    of any name) and its Python must not hold the interpreter against other models.
    """
    scripts = [[model] for model in models if model.servable.framework == "script"]
    others = [model for model in models if model.servable.framework != "script"]
    return [*([others] if others else []), *scripts]


def _model_message(model: Deployed) -> dict[str, Any]:
    return {
        "servable": model.servable.to_json(),
        "max_delay_ms": model.max_delay_ms,
        "slot": model.slot,
    }
