"""The modules of `stoker` that one model passes from `serve` to its ready session, measured on a starting server.

A server with one frontend starts with one ONNX file. Its supervisor and its device process trace their Python code.
A call is a stop of the model if one of its arguments is the model in one of its forms: settings, the folder where it
was found, its files, its `Deployment`, the message that carries it, or the loaded model. There are two walks: in the
supervisor from `serve` to the sent message, and in the device process from the message to threads that serve.

A module stands one floor above the highest module that it imports. A climb is a stop on a higher floor than its
caller. A stop on a higher floor than the stop before, whose caller stands higher still, is a return and no climb.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import grimp
from tests.live_server import LiveServer, wait_until
from tests.tiny_models import write_doubler

__all__ = ["ModelWalk", "model_path"]

_TRACER: Final = """
import json, os, sys, threading

FORMS = {
    "ModelSettings", "AvailableModel", "ModelSource", "Registered", "Deployment", "StartDevice", "LoadedModel",
}

def install(path, first, last):
    calls, is_over = [], []

    def is_model(value):
        if isinstance(value, (list, tuple, dict)) and value:
            value = next(iter(value.values() if isinstance(value, dict) else value))
        return type(value).__name__ in FORMS

    def module_of(frame):
        return frame.f_globals.get("__name__", "")

    def trace(frame, event, argument):
        code, module = frame.f_code, module_of(frame)
        if is_over or not module.startswith("stoker.") or code.co_name.startswith("<"):
            return None
        place = (module, code.co_qualname)
        if not calls and place != first:
            return None
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if place in (first, last) or any(is_model(frame.f_locals.get(name)) for name in names):
            caller = frame.f_back
            while caller is not None and not module_of(caller).startswith("stoker."):
                caller = caller.f_back
            calls.append((*place, "" if caller is None or len(calls) == 0 else module_of(caller)))
        if place == last:
            is_over.append(True)
            with open(path + ".new", "w") as file:
                json.dump(calls, file)
            os.rename(path + ".new", path)
        return None

    threading.settrace(trace)
    sys.settrace(trace)

folder = os.environ["STOKER_TESTS_MODEL_PATH"]
if "stoker.device.process" in sys.orig_argv:
    begin = "stoker.device.process", "_ModelHost._handle"
    end = "stoker.device.model_threads", "ModelThreads.serve"
    install(os.path.join(folder, "device.json"), begin, end)
elif "serve" in sys.orig_argv:
    begin = "stoker.supervisor.serving", "serve"
    end = "stoker.control.channel", "ControlChannel.send"
    install(os.path.join(folder, "supervisor.json"), begin, end)
"""
"""Imported by each process of the server at its start; it writes the calls when the last one is reached."""


class ModelWalk(NamedTuple):
    """The way of a model through one process.

    Attributes:
        stops: The module and the function of each call that the model passes, in their order.
        climbs: The caller's module of each stop that stands on a higher floor, and the stop.
        returns: How often the next stop stands on a higher floor because calls have returned.
    """

    stops: list[tuple[str, str]]
    climbs: list[tuple[str, str]]
    returns: int

    @property
    def modules(self) -> list[str]:
        """The modules in the order in which the model comes to them first."""
        return list(dict.fromkeys(module for module, _ in self.stops))


def model_path() -> tuple[ModelWalk, ModelWalk]:
    """Start a server with one ONNX file and return the walks through its supervisor and its device process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_TRACER, encoding="utf-8")
        (folder / "server").mkdir()
        model = write_doubler(folder / "doubler.onnx")
        env = {"PYTHONPATH": name, "STOKER_TESTS_MODEL_PATH": name}
        walks = [folder / "supervisor.json", folder / "device.json"]
        with LiveServer(folder / "server", model, "--frontends", "1", env=env):
            wait_until(lambda: all(map(Path.is_file, walks)), "the walks through both processes")
        floors = _floors()
        to_process, to_session = (
            _walk(json.loads(path.read_text(encoding="utf-8")), floors) for path in walks
        )
    return to_process, to_session


def _walk(calls: list[list[str]], floors: Mapping[str, int]) -> ModelWalk:
    climbs = [
        (caller, f"{module}:{function}")
        for module, function, caller in calls
        if caller and floors[module] > floors[caller]
    ]
    upwards = sum(floors[after] > floors[before] for (before, *_), (after, *_) in pairwise(calls))
    return ModelWalk([(module, function) for module, function, _ in calls], climbs, upwards - len(climbs))


def _floors() -> dict[str, int]:
    """By module its floor."""
    # Its cache may answer with the imports of before a change, if it was filled with other options since.
    graph = grimp.build_graph("stoker", cache_dir=None)
    floors: dict[str, int] = {}

    def floor(module: str) -> int:
        if module not in floors:
            floors[module] = 1 + max(map(floor, graph.find_modules_directly_imported_by(module)), default=0)
        return floors[module]

    return {module: floor(module) for module in graph.modules}
