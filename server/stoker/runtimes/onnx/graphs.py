"""The choice of an ONNX model's graph on a GPU: converted to a precision, and fused if that is faster.

Graphs, the choice, and the difference from float32 are cached in the workspace.
"""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import onnxruntime
from msgspec import Struct
from msgspec.structs import replace

from stoker.deployment import Deployment, Device
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.onnx.fusion import (
    MOST_DIFFERENCE,
    OBSERVED_SIZES,
    fuse_graph,
    has_attention,
    make_feeds,
    run_session,
)
from stoker.runtimes.onnx.precision import convert
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.precision import check_converts_on, float_difference, is_converted
from stoker.system.durable import replace_file

logger = logging.getLogger(__name__)

_Content = TypeVar("_Content", bytes, bytes | None)
_MOST_DIFFERENCE_IN: Final = {"bf16": 5e-2}
_RUNS: Final = 5
_USUAL_ROWS: Final = 32
"""The largest batch that is measured if the load chooses the sizes of batches."""
_VERSION: Final = 1
"""The version of the fusions: graphs of other versions are not read from the cache."""


class ChosenGraph(Struct, frozen=True):
    """The parts of a model to load.

    Attributes:
        model: The file, or a graph made from it.
    """

    model: Path | bytes
    is_fused: bool = False


def choose_graph(
    deployment: Deployment,
    device: Device,
    threads: int,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> ChosenGraph:
    """Choose the graph of a model for a device.

    Raises:
        LoadFailed: The graph cannot be converted to the precision.
    """
    precision, provider = deployment.acceleration.precision, deployment.acceleration.provider
    check_converts_on(deployment.name, precision, device.kind)
    if device.kind == "cpu" or provider != "cuda":
        return ChosenGraph(deployment.path)
    plain = _to_precision(deployment, deployment.path)
    if deployment.acceleration.optimize == "off" or deployment.sequence is not None:
        return ChosenGraph(plain)
    sessions = OnnxSessions(deployment, device, threads, plain)
    try:
        fused = _fused_graph(deployment, sessions)
        if fused is None:
            return ChosenGraph(plain)
        return _choose(deployment, device, sessions, _to_precision(deployment, fused), clock_ns)
    except Exception as error:  # noqa: BLE001  # other projects' code may raise any error for a graph or made-up rows
        logger.info("%s: optimize: auto does not change the graph: %s", deployment.name, error)
        return ChosenGraph(plain)


def _to_precision(deployment: Deployment, source: Path | bytes) -> Path | bytes:
    precision = deployment.acceleration.precision
    if not is_converted(precision):
        return source
    name = f"{'fused-' if isinstance(source, bytes) else ''}{precision}.onnx"
    return _read_or_make(deployment, name, lambda: convert(deployment.name, source, precision))


def find_difference(
    deployment: Deployment, device: Device, compare: Callable[[], float | None]
) -> float | None:
    """Return how far a model's answers are from float32: what `compare` returns, or an earlier load has found."""

    def make() -> bytes | None:
        difference = compare()
        return None if difference is None else json.dumps(difference).encode()

    name = f"difference-{deployment.acceleration.precision}-{_digest(device)}.json"
    found = _read_or_make(deployment, name, make)
    return None if found is None else float(json.loads(found))


def _fused_graph(deployment: Deployment, sessions: OnnxSessions) -> bytes | None:
    """Return the fused graph of a transformer, from the cache if it is there; None for other models."""
    if not has_attention(deployment.path):
        return None
    fused = _read_or_make(deployment, "fused.onnx", lambda: fuse_graph(deployment.path, sessions.open_on_cpu))
    if fused is None:
        logger.info("%s: optimize: auto found no attention in an exact form", deployment.name)
    return fused


def _choose(
    deployment: Deployment,
    device: Device,
    sessions: OnnxSessions,
    fused: Path | bytes,
    clock_ns: Callable[[], int],
) -> ChosenGraph:
    """Return the plain graph or the fused one, whichever the device computes faster."""
    name, precision = deployment.name, deployment.acceleration.precision
    choice = json.loads(
        _read_or_make(
            deployment,
            f"{precision}-{_digest(device)}.json",
            lambda: json.dumps(_compare(deployment, sessions, fused, clock_ns)).encode(),
        )
    )
    logger.debug("%s: graph %s; %s", name, "fused" if choice["fused"] else "plain", choice["why"])
    return ChosenGraph(fused, is_fused=True) if choice["fused"] else ChosenGraph(sessions.model)


def _compare(
    deployment: Deployment, sessions: OnnxSessions, fused: Path | bytes, clock_ns: Callable[[], int]
) -> dict[str, Any]:
    by_graph = {"plain": sessions.open(), "fused": replace(sessions, model=fused).open()}
    sizes = deployment.batch_buckets or (1, min(_USUAL_ROWS, deployment.max_batch_rows))
    ends = sorted({min(sizes), max(sizes)})
    times_ms: dict[str, list[float]] = {graph: [] for graph in by_graph}
    for rows in ends:
        feeds = make_feeds(by_graph["plain"], rows, OBSERVED_SIZES[0][1])
        try:
            difference = float_difference(
                run_session(by_graph["fused"], feeds), run_session(by_graph["plain"], feeds)
            )
        except OutOfMemory:
            continue
        if difference > _MOST_DIFFERENCE_IN.get(deployment.acceleration.precision, MOST_DIFFERENCE):
            why = f"its outputs differ by {difference:.2g} of the largest one"
            logger.info("%s: the fused graph is left out: %s", deployment.name, why)
            return {"fused": False, "why": f"fused, {why}"}
        times_ns: dict[str, list[int]] = {graph: [] for graph in by_graph}
        for _ in range(_RUNS):
            for graph, session in by_graph.items():
                begun_ns = clock_ns()
                run_session(session, feeds)
                times_ns[graph].append(clock_ns() - begun_ns)
        for graph, measured_ns in times_ns.items():
            times_ms[graph].append(statistics.median(measured_ns) / 1e6)
    figures = ", ".join(
        f"{graph} {' / '.join(f'{ms:.3f}' for ms in medians)}" for graph, medians in times_ms.items()
    )
    is_faster = bool(np.prod(times_ms["fused"]) < np.prod(times_ms["plain"]))
    return {"fused": is_faster, "why": f"ms for batches of {' and '.join(map(str, ends))} rows: {figures}"}


def _digest(device: Device) -> str:
    return hashlib.sha256(device.description.encode()).hexdigest()[:12]


def _read_or_make(deployment: Deployment, name: str, make: Callable[[], _Content]) -> bytes | _Content:
    """Return a file's content from the model's cache, or make it and keep it there."""
    cached = _cache_file(deployment, name)
    if cached is not None and cached.is_file():
        return cached.read_bytes()
    content = make()
    if cached is not None and content is not None:
        replace_file(cached, content)
    return content


def _cache_file(deployment: Deployment, name: str) -> Path | None:
    """Return the path of a file in the model's cache; None without a cache."""
    if deployment.engine_cache is None:
        return None
    folder = deployment.engine_cache / f"onnxruntime-{onnxruntime.__version__}-fusions-{_VERSION}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / name
