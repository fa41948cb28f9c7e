"""The device process: one device, the models on it, a thread for each model.

Started by the supervisor as `python -m stoker.device --control-fd N`. Messages it gets: `start` (device and
models), `attach` (a frontend's arena and doorbell for a model), `unload`. Messages it sends: `device`, `loaded` for
each model, or `failed`; `unloaded`. It ends when the control channel does.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import os
import signal
import socket
import threading

from stoker.arena import Arena
from stoker.control import MAX_TEXT, ControlChannel, Message
from stoker.devices import choose_device
from stoker.errors import LoadFailed, OperatorError
from stoker.lifecycle import Loaded, load
from stoker.logs import configure_logging
from stoker.metrics import MetricMemory, ModelMetrics
from stoker.planner import BatchPolicy
from stoker.scripts.environment import enter_script_process
from stoker.servable import Device, Servable
from stoker.tensors import Signature
from stoker.worker import Lane, Worker
from stoker.yielding import stop_yielding

__all__ = ["main"]

logger = logging.getLogger(__name__)

_CRASHED = 70


class _Instance:
    """One model: a thread that loads it and then serves it.

    Loading happens on the serving thread, because frameworks and scripts keep thread-local state (a
    TensorFlow 1 default graph, a database connection) that `init()` sets up for `run()`.
    """

    def __init__(self, servable: Servable, policy: BatchPolicy, metrics: ModelMetrics) -> None:
        self.servable = servable
        self._policy = policy
        self._metrics = metrics
        self._outcome: Loaded | BaseException | None = None
        self._loaded = threading.Event()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None

    def start(self, device: Device, threads: int) -> Loaded:
        """Load the model on a new thread and return once it is warm."""
        self._thread = threading.Thread(
            target=self._live, args=(device, threads), name=f"model {self.servable.name}", daemon=True
        )
        self._thread.start()
        self._loaded.wait()
        if not isinstance(self._outcome, Loaded):
            assert self._outcome is not None, "set before the event"
            raise self._outcome
        return self._outcome

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend from now on."""
        assert self._worker is not None, "the supervisor attaches only loaded models"
        self._worker.add_lane(lane)

    def stop(self) -> None:
        """Serve no more, and return when the thread has ended."""
        assert self._worker is not None, "the supervisor unloads only loaded models"
        assert self._thread is not None, "it has loaded the model"
        self._worker.stop()
        self._thread.join()

    def _live(self, device: Device, threads: int) -> None:
        try:
            loaded = load(self.servable, device, threads)
            self._metrics.clear_gauges()
            policy, script = self._policy, loaded.signature.script
            if script is not None:
                # It may take requests one by one only: then an answer must not wait for those behind it.
                policy = dataclasses.replace(policy, max_batch_rows=script.max_requests)
            elif (tensors := loaded.signature.tensors) is not None and not tensors.batched:
                policy = dataclasses.replace(policy, max_batch_rows=1)
            self._worker = Worker(loaded.runtime, policy, self._metrics)
            self._outcome = loaded
        except BaseException as error:  # noqa: BLE001  # raised again on the main thread
            self._outcome = error
            return
        finally:
            self._loaded.set()
        try:
            self._worker.serve()
        except BaseException:
            # A worker without its thread would leave callers waiting; a new process answers them.
            logger.exception("the thread of model %s ended; the device process exits", self.servable.name)
            os._exit(_CRASHED)


class _DeviceProcess:
    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._instances: dict[int, _Instance] = {}

    def serve(self) -> int:
        while (received := self._channel.receive()) is not None:
            message, fds = received
            try:
                self._handle(message, fds)
            except OperatorError as error:
                self._channel.send(
                    "failed", message=str(error)[-MAX_TEXT:], code=error.code, exit_code=error.exit_code
                )
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
        device, reason = choose_device(
            message["device"], {model["servable"]["framework"] for model in models}
        )
        self._channel.send("device", device=str(device), description=device.description, reason=reason)
        for model in models:
            servable = Servable.from_json(model["servable"])
            policy = BatchPolicy(servable.max_batch_rows, model["max_delay_ms"])
            if servable.framework == "script":
                enter_script_process(servable)
            instance = _Instance(servable, policy, page.model(model["slot"]))
            try:
                loaded = instance.start(device, model["threads"])
            except OperatorError:
                raise
            except Exception as error:
                logger.exception("loading %s failed", servable.name)
                raise LoadFailed(f"{servable.name} cannot be loaded: {error!r}") from error
            self._instances[model["number"]] = instance
            self._channel.send(
                "loaded",
                number=model["number"],
                signature=loaded.signature.to_json(),
                load_s=loaded.load_s,
                warm_up_s=loaded.warm_up_s,
            )

    def _attach(self, message: Message, arena_fd: int, doorbell_fd: int) -> None:
        instance = self._instances[message["number"]]
        signature = Signature.from_json(message["signature"])
        arena = Arena(arena_fd, signature, message["capacity"])
        os.close(arena_fd)
        instance.add_lane(Lane(arena, socket.socket(fileno=doorbell_fd)))

    def _unload(self, number: int) -> None:
        self._instances.pop(number).stop()
        # Frameworks' objects refer to each other in circles.
        gc.collect()
        self._channel.send("unloaded", number=number)


def main() -> int:
    """Entry point of the device process."""
    parser = argparse.ArgumentParser(
        prog="stoker.device", description="Started by `stoker serve`, not by hand."
    )
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args()
    # A signal to the whole process group is the supervisor's to answer: it drains first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logging("device")
    code = _DeviceProcess(ControlChannel.inherited(args.control_fd)).serve()
    # Model threads may be inside a runtime that cannot be interrupted.
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
