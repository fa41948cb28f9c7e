"""The device process: one device, the models on it, a thread for each instance of a model.

The supervisor starts it with `--control-fd N`. Their messages are in `stoker.control.device_messages`. The process
ends when the control channel does.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn, assert_never

from stoker.arena import Arena
from stoker.control.channel import ControlChannel
from stoker.control.device_messages import (
    DEVICE_END,
    AddLane,
    BatchingStopped,
    DeviceChosen,
    Failed,
    FromDevice,
    Loaded,
    LoadModel,
    ServerAddress,
    StartDevice,
    StopBatching,
    ToDevice,
    Unloaded,
    UnloadModel,
)
from stoker.deployment import Deployment, Device
from stoker.device.device_page import DevicePage
from stoker.device.device_turns import DeviceTurns
from stoker.device.lanes import Lane
from stoker.device.loader_thread import LoaderThread
from stoker.device.lock_guard import LockGuard
from stoker.device.model_threads import ModelThreads
from stoker.device.overlap import measure_overlap
from stoker.device.runtime_loading import import_runtime
from stoker.errors import LoadFailed, OperatorError, without_frames
from stoker.gpu.confinement import enter_device
from stoker.keys.keyring import Keyring
from stoker.keys.mounted import MountedKeys
from stoker.metrics.layout import CALLERS
from stoker.metrics.memory import MetricMemory, MetricPage
from stoker.row_isolation import RowIsolation
from stoker.scripts.script_process import enter_script_process, leave_script_process, set_script_log_level
from stoker.scripts.server_calls import OwnServer, connect
from stoker.settings.traffic import keys_owner
from stoker.system.logs import LogSettings, change_log_settings, configure_logging
from stoker.system.processes import stop_yielding, write_stacks_on_signal
from stoker.system.resources import private_memory, trim_heap
from stoker.system.vital_work import start_thread, vital

logger = logging.getLogger(__name__)


_SWITCH_S: Final = 0.0005


class _ModelHost:
    """The models of this process, and the messages of the supervisor about them."""

    def __init__(self, channel: ControlChannel[FromDevice, ToDevice]) -> None:
        self._channel = channel
        self._loader: LoaderThread | None = None
        self._models: dict[int, ModelThreads] = {}
        self.runs_script = False
        self._failure: OperatorError | None = None
        """Why loading failed."""
        self._lock_guard = LockGuard()
        self._leaves_cycles = True
        """Whether objects of an unloaded model may refer to each other, so that only a collection frees them."""

    def serve(self) -> int:
        while (received := self._channel.receive()) is not None:
            message, fds = received
            try:
                self._handle(message, fds)
            except OperatorError as error:
                self._channel.send(Failed(str(error), error.code, error.exit_code))
                return error.exit_code
            if self._failure is not None:
                return self._failure.exit_code
        self._lock_guard.stop()
        return 0

    def _handle(self, message: ToDevice, fds: list[int]) -> None:
        match message:
            case StartDevice():
                self._start(message, *fds)
            case LoadModel(model):
                assert self._loader is not None, "it is for processes that pack"
                self._loader.add(model)
            case AddLane():
                arena_fd, doorbell_fd = fds
                self._add_lane(message, arena_fd, doorbell_fd)
            case StopBatching(number):
                self._models[number].stop_batching()
            case UnloadModel(number):
                # A batch of callers that have gone may still be running.
                try:
                    start_thread(partial(self._unload, number), "unload")
                except (MemoryError, RuntimeError):
                    self._unload(number)
            case LogSettings():
                change_log_settings(message)
                if self.runs_script:
                    set_script_log_level()
            case _:
                assert_never(message)

    def _start(self, start: StartDevice, metrics_fd: int, turns_fd: int) -> None:
        configure_logging(f"device {start.name}")
        change_log_settings(start.log)
        if start.server is not None:
            connect(_own_server(start.server))
        page = MetricMemory(metrics_fd).page(start.page)
        os.close(metrics_fd)
        device, reason = enter_device(start.device, {model.framework for model in start.models})
        self._channel.send(DeviceChosen(str(device), device.description, reason))
        page.set_device(*(gpu.index for gpu in device.gpus))
        turns = _join_turns(turns_fd, device, start)
        is_alone = len(start.models) == 1 and not start.packs
        load = partial(self._load_model, device=device, page=page, turns=turns, is_alone=is_alone)
        if start.packs:
            self._pack(start, load, device)
            return
        try:
            failures = [failure for model in start.models if (failure := self._try(load, model))]
            if not self._models:
                self._failure = failures[-1]
            if turns is not None and start.device_batches is None:
                measure_overlap(turns, list(self._models.values()))
        finally:
            if start.yields:
                stop_yielding(start.niceness)
        self._lock_guard.start()
        for instances in self._models.values():
            instances.serve()

    def _pack(self, start: StartDevice, load: Callable[[Deployment], None], device: Device) -> None:
        """Load models beside those that serve, now and later; each serves once it is loaded."""
        import_runtime("onnx")
        # The default of 5 ms is how long a batch may wait for the interpreter lock, each time, while a model loads.
        sys.setswitchinterval(_SWITCH_S)
        # Imported modules stay, so collections need not look at them: other models do not serve during a collection.
        gc.collect()
        gc.freeze()
        # Sessions of ONNX Runtime on a CPU are freed without it: a collection would stop all models for 2 ms.
        self._leaves_cycles = device.kind != "cpu"
        self._lock_guard.start()
        yields = [start.niceness] if start.yields else []

        def load_and_serve(model: Deployment) -> None:
            loaded = self._try(load, replace(model, captures=False)) is None
            while yields:
                stop_yielding(yields.pop())
            if loaded:
                self._models[model.number].serve()

        self._loader = LoaderThread(load_and_serve)
        for model in start.models:
            self._loader.add(model)

    def _try(self, load: Callable[[Deployment], None], model: Deployment) -> OperatorError | None:
        """Load a model; returns why it failed."""
        try:
            load(model)
        except OperatorError as error:
            failure = without_frames(error)
        else:
            return None
        # Its memory becomes free for the other models: only cycles know it any more.
        gc.collect()
        trim_heap()
        self._channel.send(Failed(str(failure), failure.code, failure.exit_code, model.number))
        return failure

    def _load_model(
        self,
        deployment: Deployment,
        *,
        device: Device,
        page: MetricPage,
        turns: DeviceTurns | None,
        is_alone: bool,
    ) -> None:
        before_bytes = private_memory()
        if deployment.framework == "script":
            self.runs_script = True
            enter_script_process(deployment)

        def report(isolation: RowIsolation) -> None:
            self._channel.send(BatchingStopped(deployment.number, isolation))

        metrics = page.model(deployment.slot)
        if deployment.limit is not None:
            metrics.limit = CALLERS + deployment.limit.number
        instances = ModelThreads(deployment, metrics, report, turns, is_alone=is_alone)
        try:
            loaded = instances.start(device)
        except OperatorError:
            raise
        except Exception as error:
            logger.exception("loading %s failed", deployment.name)
            raise LoadFailed(f"{deployment.name} cannot be loaded: {error!r}") from error
        self._models[deployment.number] = instances
        self._lock_guard.add(deployment.number, deployment.timeout_ms)
        self._channel.send(
            Loaded(
                deployment.number,
                loaded.signature,
                loaded.load_s,
                loaded.warm_up_s,
                loaded.max_batch_rows,
                max(0, private_memory() - before_bytes),
            )
        )

    def _add_lane(self, message: AddLane, arena_fd: int, doorbell_fd: int) -> None:
        try:
            arena = Arena(arena_fd, message.signature, message.capacity_rows)
        except OSError as error:
            raise MemoryError(f"the rows of a frontend cannot be mapped: {error.strerror}") from error
        os.close(arena_fd)
        lane = Lane(arena, socket.socket(fileno=doorbell_fd))
        self._models[message.number].add_lane(lane)

    def _unload(self, number: int) -> None:
        if self._loader is not None:
            self._loader.wait(number)
        model = self._models.pop(number, None)
        if model is not None:
            model.stop()
            with self._lock_guard.suspended():
                self._lock_guard.remove(number)
                del model
                if self._leaves_cycles:
                    gc.collect()
            trim_heap()
        self._channel.send(Unloaded(number))


def _own_server(address: ServerAddress) -> OwnServer:
    """The server, as the scripts of this process see it."""

    def key_of(model: str) -> str | None:
        if not address.auth:
            return None
        if address.keys is not None:
            return address.keys.primary
        # They may be replaced while the server runs.
        if address.mounted_keys is not None:
            return MountedKeys.read(address.mounted_keys, signs=False).keys.primary
        return Keyring(address.keys_dir, keys_owner(address.endpoint, model)).show().primary

    return OwnServer(address.host, address.port, address.tls, key_of, address.problem)


def _join_turns(turns_fd: int, device: Device, start: StartDevice) -> DeviceTurns | None:
    """The turns of the device; None in processes of entry scripts, whose run time is not the device's."""
    try:
        if any(model.framework == "script" for model in start.models):
            return None
        page = DevicePage(turns_fd, str(device))
    except OSError as error:
        logger.warning("the batches of this process do not take turns of the device: %s", error)
        return None
    finally:
        os.close(turns_fd)
    if start.device_batches is not None:
        page.set_turns(start.device_batches)
    return DeviceTurns(page, is_forced=start.device_batches is not None)


def _leave_ending_to_the_supervisor() -> None:
    """Let SIGTERM and SIGINT do nothing here: they may go to a whole process group, and the supervisor drains first.

    A handler rather than SIG_IGN, which child processes of a script would inherit: a handler does not survive
    `exec`.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_heed_signals)


def _heed_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> int:
    """Entry point of the device process."""
    parser = argparse.ArgumentParser(
        prog="stoker.device.process", description="Started by `stoker serve`, not by hand."
    )
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args()
    _leave_ending_to_the_supervisor()
    write_stacks_on_signal()
    configure_logging("device")
    with vital("the device process"):
        process = _ModelHost(ControlChannel.inherited(args.control_fd, DEVICE_END))
        code = process.serve()

    def end() -> NoReturn:
        # Model threads may be inside a runtime that cannot be interrupted.
        logging.shutdown()
        os._exit(code)

    if process.runs_script:
        leave_script_process(end)
    end()
