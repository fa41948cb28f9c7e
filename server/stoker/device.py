"""The device process: one device, the models on it, a thread for each instance of a model.

Started by the supervisor as `python -m stoker.device --control-fd N`. Messages it gets: `start` (device and
models), `attach` (a frontend's arena and doorbell for a model), `unload`. Messages it sends: `device`, `loaded` for
each model, or `failed`; `unloaded`. It ends when the control channel does.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import socket
import threading

from stoker.arena import Arena
from stoker.control import ControlChannel, Message
from stoker.devices import enter_device
from stoker.errors import LoadFailed, OperatorError
from stoker.lanes import Lane
from stoker.logs import configure_logging
from stoker.metrics import MetricMemory
from stoker.model_threads import ModelThreads
from stoker.process_end import STACKS_SIGNAL
from stoker.scripts.environment import enter_script_process
from stoker.servable import Servable
from stoker.tensors import Signature
from stoker.yielding import stop_yielding

__all__ = ["main"]

logger = logging.getLogger(__name__)


class _DeviceProcess:
    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._models: dict[int, ModelThreads] = {}

    def serve(self) -> int:
        while (received := self._channel.receive()) is not None:
            message, fds = received
            try:
                self._handle(message, fds)
            except OperatorError as error:
                self._channel.send("failed", message=str(error), code=error.code, exit_code=error.exit_code)
                return error.exit_code
        return 0

    def _handle(self, message: Message, fds: list[int]) -> None:
        match message["kind"]:
            case "start":
                self._start(message, fds[0])
            case "attach":
                arena_fd, doorbell_fd = fds
                self._attach(message, arena_fd, doorbell_fd)
            case "unload":
                # A batch may be under way for callers that have gone.
                threading.Thread(target=self._unload, args=(message["number"],), daemon=True).start()

    def _start(self, message: Message, metrics_fd: int) -> None:
        try:
            self._load(message, metrics_fd)
        finally:
            if message["yields"]:
                stop_yielding(message["niceness"])

    def _load(self, message: Message, metrics_fd: int) -> None:
        page = MetricMemory(metrics_fd).page(message["page"])
        os.close(metrics_fd)
        models = message["models"]
        device, reason = enter_device(message["device"], {model["servable"]["framework"] for model in models})
        self._channel.send("device", device=str(device), description=device.description, reason=reason)
        for model in models:
            servable = Servable.from_json(model["servable"])
            if servable.framework == "script":
                enter_script_process(servable)
            instances = ModelThreads(servable, model["max_delay_ms"], page.model(model["slot"]))
            try:
                loaded = instances.start(device, model["threads"])
            except OperatorError:
                raise
            except Exception as error:
                logger.exception("loading %s failed", servable.name)
                raise LoadFailed(f"{servable.name} cannot be loaded: {error!r}") from error
            self._models[model["number"]] = instances
            self._channel.send(
                "loaded",
                number=model["number"],
                signature=loaded.signature.to_json(),
                load_s=loaded.load_s,
                warm_up_s=loaded.warm_up_s,
            )
        for instances in self._models.values():
            instances.serve()

    def _attach(self, message: Message, arena_fd: int, doorbell_fd: int) -> None:
        signature = Signature.from_json(message["signature"])
        arena = Arena(arena_fd, signature, message["capacity"])
        os.close(arena_fd)
        lane = Lane(arena, socket.socket(fileno=doorbell_fd))
        self._models[message["number"]].add_lane(lane)

    def _unload(self, number: int) -> None:
        self._models.pop(number).stop()
        # Frameworks' objects refer to each other in circles.
        gc.collect()
        self._channel.send("unloaded", number=number)


def _leave_ending_to_the_supervisor() -> None:
    """Let SIGTERM and SIGINT, which may go to a whole process group, do nothing: the supervisor drains first.

    They are not ignored, or whatever a script starts would ignore them too: a handler does not outlive `exec`.
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
        prog="stoker.device", description="Started by `stoker serve`, not by hand."
    )
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args()
    _leave_ending_to_the_supervisor()
    faulthandler.register(STACKS_SIGNAL)
    configure_logging("device")
    code = _DeviceProcess(ControlChannel.inherited(args.control_fd)).serve()
    # Model threads may be inside a runtime that cannot be interrupted.
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
