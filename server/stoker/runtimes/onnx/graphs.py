"""The graph of an ONNX model on a GPU: in the precision that is asked for, and fused where that is faster."""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from stoker.deployment import Deployment, Device
from stoker.isolation.made_up_rows import sample_feeds
from stoker.isolation.onnx.graph import MalformedModel, read_model
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.onnx.attention import Observation, fuse_attention
from stoker.runtimes.onnx.bfloat16 import with_bfloat16
from stoker.runtimes.onnx.gelu import fuse_gelu
from stoker.runtimes.onnx.precision import MOST_BYTES, convert, weight_bytes
from stoker.runtimes.onnx.sessions import DTYPES, OnnxSessions, raise_if_out_of_memory
from stoker.runtimes.precision import check_converts_on, float_difference, is_converted
from stoker.system.durable import replace_file
from stoker.tensors import TensorInfo

logger = logging.getLogger(__name__)

_MOST_CHANGE: Final = 1e-2
"""By how much of the largest output the answers of a fused graph may differ from those of the graph as it is."""
_MOST_CHANGE_IN: Final = {"bf16": 5e-2}
_RUNS: Final = 5
_OBSERVED: Final = ((2, 8), (3, 5))
"""Rows, and sizes of free axes, with which graphs are observed: each another one."""
_USUAL_ROWS: Final = 32
"""The largest batch that is timed where the sizes of batches are chosen later."""
_VERSION: Final = 1
"""Of what the fusions here make of a graph: kept graphs of others are made anew."""


@dataclass(frozen=True, slots=True)
class ChosenGraph:
    """The parts of a model to load.

    Attributes:
        model: Its file, or a graph made of it.
    """

    model: Path | bytes
    is_fused: bool = False


def graph_of(
    deployment: Deployment,
    device: Device,
    threads: int,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> ChosenGraph:
    """Return what is to be loaded of a model on a device.

    Raises:
        LoadFailed: The precision cannot be had.
    """
    precision, provider = deployment.acceleration.precision, deployment.acceleration.provider
    check_converts_on(deployment.name, precision, device.kind)
    if device.kind == "cpu":
        return ChosenGraph(deployment.path)
    if provider != "cuda":
        return ChosenGraph(deployment.path)
    plain = _in_precision(deployment, deployment.path)
    if deployment.acceleration.optimize == "off" or deployment.sequence is not None:
        return ChosenGraph(plain)
    sessions = OnnxSessions(deployment, device, threads, plain)
    try:
        fused = _fused_graph(deployment, sessions)
        if fused is None:
            return ChosenGraph(plain)
        return _chosen(deployment, device, sessions, _in_precision(deployment, fused), clock_ns)
    except Exception as error:  # noqa: BLE001  # whatever another project's code raises on a graph, or made-up rows
        logger.info("%s: optimize: auto leaves the graph as it is: %s", deployment.name, error)
        return ChosenGraph(plain)


def _in_precision(deployment: Deployment, source: Path | bytes) -> Path | bytes:
    precision = deployment.acceleration.precision
    return convert(deployment.name, source, precision) if is_converted(precision) else source


# Fusions.


def _fused_graph(deployment: Deployment, sessions: OnnxSessions) -> bytes | None:
    """Return the fused graph of a transformer, kept from an earlier start if there is one; None for other models."""
    if not _has_attention(deployment.path):
        return None
    kept = _kept(deployment, "fused.onnx")
    if kept is not None and kept.is_file():
        return kept.read_bytes()
    fused = fuse_graph(deployment.path, sessions.open_on_cpu)
    if fused is None:
        logger.info("%s: optimize: auto found no attention in an exact form", deployment.name)
        return None
    if kept is not None:
        replace_file(kept, fused)
    return fused


def _has_attention(path: Path) -> bool:
    """Whether a graph has a product of a softmax, and weights that can be changed in memory."""
    try:
        nodes = read_model(path).graph.nodes
    except (MalformedModel, OSError):
        return False
    softmaxes = {name for node in nodes if node.operator == "Softmax" for name in node.outputs}
    return weight_bytes(path) < MOST_BYTES and any(
        node.operator == "MatMul" and not softmaxes.isdisjoint(node.inputs) for node in nodes
    )


def fuse_graph(
    path: Path, open_on_cpu: Callable[[bytes | Path], onnxruntime.InferenceSession]
) -> bytes | None:
    """Fuse attention and GELU in a model of float32, and then what ONNX Runtime fuses itself.

    Returns:
        The graph, serialised; None if there is no attention in an exact form.

    Raises:
        ValueError: The graph gives something else than before.
        Exception: The model takes no made-up rows, or packages are missing.
    """
    import onnx

    # It says how many nodes it removed.
    logging.getLogger("onnxruntime.transformers").setLevel(logging.WARNING)
    original = open_on_cpu(path)
    levels = onnxruntime.GraphOptimizationLevel
    with tempfile.TemporaryDirectory() as folder:
        # Constants that exporters compute from sizes are folded before, and fusions of others follow.
        model = _optimised(path, levels.ORT_ENABLE_BASIC, Path(folder) / "basic.onnx")
        runs = [_feeds(original, rows, free) for rows, free in _OBSERVED]

        def observe(names: Sequence[str]) -> list[Observation]:
            return _observe(model, names, runs)

        if not fuse_attention(model, observe):
            return None
        fuse_gelu(model)
        onnx.save(model, Path(folder) / "fused.onnx")
        model = _optimised(
            Path(folder) / "fused.onnx", levels.ORT_ENABLE_EXTENDED, Path(folder) / "extended.onnx"
        )
    content: bytes = model.SerializeToString()
    fused = open_on_cpu(content)
    for feeds in runs:
        difference = float_difference(_run(fused, feeds), _run(original, feeds))
        if difference > _MOST_CHANGE:
            raise ValueError(f"fused, its outputs differ by {difference:.2g} of the largest one")
    return content


def _optimised(path: Path, level: Any, written: Path) -> Any:
    """Return what ONNX Runtime makes of a graph."""
    import onnx

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(written)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(str(written))


def _observe(model: Any, names: Sequence[str], runs: Sequence[Mapping[str, np.ndarray]]) -> list[Observation]:
    """Run a graph as it is, and return what it has for tensors inside of it."""
    import onnx

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    outputs = {value.name for value in watched.graph.output}
    inputs = {value.name for value in watched.graph.input}
    asked = [name for name in names if name not in inputs]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked if name not in outputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [{**feeds, **dict(zip(asked, session.run(asked, dict(feeds)), strict=True))} for feeds in runs]


def _feeds(session: onnxruntime.InferenceSession, rows: int, free: int) -> dict[str, np.ndarray]:
    """Make up inputs of so many rows; raises ValueError for a model without a batch axis."""
    inputs = []
    for value in session.get_inputs():
        if not value.shape or isinstance(value.shape[0], int):
            raise ValueError(f"the first axis of its input {value.name!r} is no free size")
        sizes = (size if isinstance(size, int) else free for size in value.shape[1:])
        inputs.append(TensorInfo(value.name, DTYPES[value.type], (-1, *sizes)))
    feeds = sample_feeds(inputs, min(rows, _OBSERVED[-1][0]))
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in feeds.items()}


def _run(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in session.get_outputs()]
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    try:
        outputs = with_bfloat16(session).run(names, dict(feeds), options)
    except Exception as error:
        raise_if_out_of_memory(error)
        raise
    return dict(zip(names, outputs, strict=True))


# The choice.


def _chosen(
    deployment: Deployment,
    device: Device,
    sessions: OnnxSessions,
    fused: Path | bytes,
    clock_ns: Callable[[], int],
) -> ChosenGraph:
    """Return the faster one of a model's graph and the fused one, on the device."""
    name, precision = deployment.name, deployment.acceleration.precision
    gpu = hashlib.sha256(device.description.encode()).hexdigest()[:12]
    kept = _kept(deployment, f"{precision}-{gpu}.json")
    if kept is not None and kept.is_file():
        choice = json.loads(kept.read_text())
    else:
        choice = _compare(deployment, sessions, fused, clock_ns)
        if kept is not None:
            replace_file(kept, json.dumps(choice).encode())
    logger.debug("%s: graph %s; %s", name, "fused" if choice["fused"] else "as it is", choice["why"])
    return ChosenGraph(fused, is_fused=True) if choice["fused"] else ChosenGraph(sessions.model)


def _compare(
    deployment: Deployment, sessions: OnnxSessions, fused: Path | bytes, clock_ns: Callable[[], int]
) -> dict[str, Any]:
    plain, other = sessions.open(), replace(sessions, model=fused).open()
    sizes = deployment.batch_buckets or (1, min(_USUAL_ROWS, deployment.max_batch_rows))
    ends = sorted({min(sizes), max(sizes)})
    times_ms: dict[str, list[float]] = {"as it is": [], "fused": []}
    for rows in ends:
        feeds = _feeds(plain, rows, _OBSERVED[0][1])
        try:
            difference = float_difference(_run(other, feeds), _run(plain, feeds))
        except OutOfMemory:
            continue
        if difference > _MOST_CHANGE_IN.get(deployment.acceleration.precision, _MOST_CHANGE):
            why = f"its outputs differ by {difference:.2g} of the largest one"
            logger.info("%s: the fused graph is left out: %s", deployment.name, why)
            return {"fused": False, "why": f"fused, {why}"}
        taken: dict[str, list[int]] = {way: [] for way in times_ms}
        for _ in range(_RUNS):
            for way, session in zip(times_ms, (plain, other), strict=True):
                begun_ns = clock_ns()
                _run(session, feeds)
                taken[way].append(clock_ns() - begun_ns)
        for way, times_ns in taken.items():
            times_ms[way].append(statistics.median(times_ns) / 1e6)
    told = ", ".join(f"{way} {' / '.join(f'{ms:.3f}' for ms in found)}" for way, found in times_ms.items())
    is_faster = bool(np.prod(times_ms["fused"]) < np.prod(times_ms["as it is"]))
    return {"fused": is_faster, "why": f"ms for batches of {' and '.join(map(str, ends))} rows: {told}"}


def _kept(deployment: Deployment, name: str) -> Path | None:
    """Return where something made of a model's graph is kept; None if nothing is."""
    if deployment.engine_cache is None:
        return None
    folder = deployment.engine_cache / f"onnxruntime-{onnxruntime.__version__}-fusions-{_VERSION}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / name
