"""Profiles a model: a process times its batches, and a search finds settings for a latency target."""

from __future__ import annotations

import base64
import copy
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import yaml

from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout
from stoker.models.layouts import likely_name
from stoker.profiling.measuring import Order
from stoker.profiling.search import (
    Candidate,
    Estimate,
    Load,
    MeasuredCurve,
    SearchResult,
    Space,
    Step,
    search,
)
from stoker.settings.files import read_yaml
from stoker.system.resources import MemoryKills

_EXECUTIONS: Final = ("copied", "bound", "graph")
_MEASURING: Final = "stoker.profiling.measuring"
_BUSY_FRONTENDS: Final = 0.8
"""The share of their time that frontends can be busy before requests queue for them."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a model.

    Attributes:
        facts: Its name, device and defaults, as reported by the process.
        curves: Batch times by execution.
    """

    facts: dict[str, Any]
    curves: dict[str, MeasuredCurve] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The body of the sample request."""
        return base64.b64decode(self.facts["request"]["body"])


@dataclass(frozen=True)
class LoadTest:
    """A request and a load, with the expectation that 99 % of the answers are within the target.

    Attributes:
        target_ms: The latency target.
        rows_per_s: The load at which 99 % are expected to be in time; 0 if none is expected yet.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    rows: int
    target_ms: float
    rows_per_s: float = 0.0


@dataclass(frozen=True)
class RequestCost:
    """The cost of a request beside its batch, measured on a server in closed loops.

    Attributes:
        frontends: Number of frontend processes.
        frontend_us: Their CPU time for a request, with many connections.
        lone_ms: Median time to the answer of a lone caller, its batch included.
    """

    frontends: int
    frontend_us: float
    lone_ms: float

    @property
    def most_requests_per_s(self) -> float:
        """The requests that the frontends have time for."""
        return _BUSY_FRONTENDS * self.frontends / self.frontend_us * 1e6


@dataclass(frozen=True)
class Confirmation:
    """The load that a server sustained.

    Attributes:
        load_rows_per_s: The largest load that was tried at which 99 % were in time; 0 if there was none.
        p50_ms, p99_ms: Time to the answer at half of that, as callers see it; at the least load that was tried if
            none was sustained.
        limit: What allowed no more: `generator`, `frontends` or `device`; `cores` if all cores of the machine were
            busy; `latency` if nothing was. None if the expected load was sustained.
        busy: The share of their time, from 0 to 1, for which `generator`, `frontends`, `device` and `all cores` were
            busy at the least load that was not sustained, and the share of all cores that `other programs` used.
    """

    load_rows_per_s: float
    p50_ms: float
    p99_ms: float
    limit: str | None = None
    busy: Mapping[str, float] = field(default_factory=dict)


def measure_model(order: Order, report: Report = lambda _: None) -> Measured:
    """Load a model in a process of its own and time its batches; on a GPU with each kind of execution.

    Args:
        report: Called with a report of each step.

    Raises:
        OperatorError: The model cannot be measured; the message says why.
    """
    facts = _measure_in_process(order, report)
    measured = Measured(facts, {"auto": _curve(facts)})
    if facts["framework"] != "onnx" or facts["device"] == "cpu":
        return measured
    for execution in _EXECUTIONS:
        report({"step": f"execution {execution}"})
        variant = replace(order, settings={**order.settings, "execution": execution})
        try:
            measured.curves[execution] = _curve(_measure_in_process(variant, report))
        except LoadFailed as error:
            # For example, not every model can be captured as a CUDA graph.
            report({"note": f"execution {execution} is left out: {error}"})
    return measured


def find_settings(
    measured: Measured, load: Load, cost: RequestCost | None = None, step: Step = lambda _done, _of: None
) -> SearchResult:
    """Search the settings of a measured model.

    Args:
        cost: The cost of a request beside its batch; None to search for the device alone.

    Raises:
        InvalidSettings: Not even a batch of one row is within the target.
    """
    space = space_of(measured)
    curves = measured.curves.values()
    beside_ms, most_rows_per_s = 0.0, math.inf
    if cost is not None:
        beside_ms = max(0.0, cost.lone_ms - min(curve.alone(load.rows) for curve in curves) / 1e6)
        most_rows_per_s = cost.most_requests_per_s * load.rows
    least_ms = min(curve.alone(1) for curve in curves) / 1e6 + beside_ms
    if least_ms > load.target_ms:
        raise InvalidSettings(
            f"one row takes {least_ms:.3g} ms here, so no answer can be within {load.target_ms:g} ms; raise "
            "--target-ms, or take a faster device"
        )
    # The device has the time that the request's way leaves.
    load = replace(load, target_ms=load.target_ms - beside_ms, most_rows_per_s=most_rows_per_s)
    found = search(space, load, step)

    def whole(estimate: Estimate) -> Estimate:
        parts = (estimate.p50_ms, estimate.p99_ms, estimate.light_ms)
        p50_ms, p99_ms, light_ms = (each and each + beside_ms for each in parts)
        return replace(estimate, p50_ms=p50_ms, p99_ms=p99_ms, light_ms=light_ms)

    return SearchResult(tuple(map(whole, found.ranked)), whole(found.default))


def space_of(measured: Measured) -> Space:
    """The search space of a measured model."""
    facts = measured.facts
    default = Candidate(
        facts["max_batch_rows"],
        facts["instances"],
        tuple(facts["batch_buckets"]),
        requests=facts["takes"] != "rows",
        admission=facts["admission"],
    )
    return Space(measured.curves, default, forks=facts["forks"])


def _curve(facts: dict[str, Any]) -> MeasuredCurve:
    return MeasuredCurve.fitted(facts["alone"], facts["beside"], filled=bool(facts["batch_buckets"]))


def _measure_in_process(order: Order, report: Report) -> dict[str, Any]:
    """Run the measuring process; it is killed if this process is interrupted."""
    kills = MemoryKills()
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(read, encoding="utf-8") as messages:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MEASURING, order.to_json(), str(write)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            # Ctrl-C reaches only this process, which ends the other one.
            start_new_session=True,
        )
        os.close(write)
        limit = _LoadLimit(process.kill)
        try:
            for line in messages:
                message = json.loads(line)
                limit.receive(message)
                if "error" in message:
                    raise _failed(message)
                if "measured" in message:
                    measured: dict[str, Any] = message["measured"]
                    return measured
                report(message)
            status = process.wait()
        finally:
            limit.receive({})
            process.kill()
            process.wait()
        limit.check()
        raise LoadFailed(
            f"the process that measured {order.model} {kills.describe(status)}: {_last_line(log)}"
        )


class _LoadLimit:
    """Kills the measuring process if loading the model takes longer than its limit."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._timer: threading.Timer | None = None
        self._late = ""

    def receive(self, message: Mapping[str, Any]) -> None:
        """Receive a message of the process, which restarts the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if "load_timeout_s" in message:
            self._timer = threading.Timer(message["load_timeout_s"], self._end, [message])
            self._timer.daemon = True
            self._timer.start()

    def _end(self, message: Mapping[str, Any]) -> None:
        self._late = (
            f"{message['step']} took longer than {message['load_timeout_s']:g} s, so the process was ended; if the "
            "model only needs longer, raise load_timeout_s"
        )
        self._kill()

    def check(self) -> None:
        """Raise LoadTimeout if the time was up."""
        if self._late:
            raise LoadTimeout(self._late)


def _failed(message: dict[str, Any]) -> InvalidSettings | LoadFailed:
    kind = InvalidSettings if message["exit_code"] == InvalidSettings.exit_code else LoadFailed
    return kind(message["error"])


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


# Deployment files with the found settings.


_SEARCHED: Final = ("max_batch_rows", "instances", "batch_buckets")
"""Settings that the search overrides; `execution` is written only if it differs from the configured one."""
_PATHS: Final = ("path", "model_dir", "environment", "sample_input")


def deployment_of(
    model: str, config: Path | None, device: str, target_ms: float, candidate: Candidate
) -> dict[str, Any]:
    """The content of a deployment file that serves a model with these settings.

    Args:
        model: A path, or a registered model; with `config` one of its models.
        config: A deployment file whose other settings are kept; None for one with this model only.
        device: The device; `auto` keeps the configured one.
        target_ms: The latency target.
        candidate: The settings found.

    Raises:
        InvalidSettings: The file does not list the model.
    """
    if config is None:
        content: dict[str, Any] = {"models": [_named(model)]}
    else:
        content = copy.deepcopy(read_yaml(config, "deployment file", "settings by name"))
    entry = _entry(content, model, config)
    for name in _SEARCHED:
        if name != "max_batch_rows" or not candidate.requests:
            entry.pop(name, None)
    entry |= {"target_ms": target_ms, **candidate.settings()}
    if device != "auto":
        entry["device"] = device
    return content


def only_model(content: dict[str, Any], model: str, config: Path | None) -> dict[str, Any]:
    """The part of a deployment for one model, with absolute paths."""
    entry = copy.deepcopy(_entry(content, model, config))
    base = Path() if config is None else config.parent
    for name in _PATHS:
        if entry.get(name) is not None:
            entry[name] = str((base / entry[name]).absolute())
    alone: dict[str, Any] = {"models": [entry]}
    return alone if "device" not in content else {"device": content["device"], **alone}


def check_output(output: Path, config: Path | None, *, force: bool) -> None:
    """Refuse an output file that could not be written, before anything is measured.

    Raises:
        InvalidSettings: It exists, its folder is missing, or relative paths would have another meaning in its folder.
    """
    if output.exists() and not force:
        raise InvalidSettings(
            f"{output} is there already; overwrite it with --force, or name another --output"
        )
    if not output.absolute().parent.is_dir():
        raise InvalidSettings(f"there is no folder {output.parent} for {output.name}; make it first")
    if config is not None and output.absolute().parent.resolve() != config.absolute().parent.resolve():
        raise InvalidSettings(
            f"{output} has to be in the folder of {config}, whose relative paths begin there; name it "
            f"{config.parent / output.name}"
        )


def write_deployment(output: Path, content: dict[str, Any], lines: list[str]) -> None:
    """Write a deployment file.

    Args:
        content: The deployment.
        lines: Comment lines for its head.
    """
    head = "".join(f"# {line}\n" for line in lines)
    output.write_text(head + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _named(model: str) -> dict[str, Any]:
    if Path(model).exists() or model != Path(model).name:
        return {"path": str(Path(model).absolute())}
    return {"registered": model}


def _entry(content: dict[str, Any], model: str, config: Path | None) -> dict[str, Any]:
    """The entry of a model in a deployment, to be changed in place."""
    entries: list[dict[str, Any]] = content.get("models") or []
    if config is None:
        return entries[0]
    names = [_name(entry, config.parent) for entry in entries]
    if model not in names:
        raise InvalidSettings(f"{config} lists no model {model!r}; it has: {', '.join(names) or 'none'}")
    return entries[names.index(model)]


def _name(entry: dict[str, Any], folder: Path) -> str:
    if entry.get("name"):
        return str(entry["name"])
    if entry.get("registered"):
        return str(entry["registered"]).partition(":")[0]
    return likely_name(folder / str(entry.get("path", "")))
