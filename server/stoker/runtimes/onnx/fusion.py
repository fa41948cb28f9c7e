"""Fused graphs of transformers: attention and GELU become single operators of ONNX Runtime.

See decision 53.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from stoker.isolation.made_up_rows import sample_feeds
from stoker.isolation.onnx.graph import MalformedModel, read_model
from stoker.runtimes.onnx.attention import Observation, fuse_attention
from stoker.runtimes.onnx.bfloat16 import with_bfloat16
from stoker.runtimes.onnx.gelu import fuse_gelu
from stoker.runtimes.onnx.precision import MOST_BYTES, weight_bytes
from stoker.runtimes.onnx.sessions import DTYPES, raise_if_out_of_memory
from stoker.runtimes.precision import float_difference
from stoker.tensors import TensorInfo

MOST_DIFFERENCE: Final = 1e-2
"""By how much of the largest output the answers of a fused graph may differ from those of the plain graph."""
OBSERVED_SIZES: Final = ((2, 8), (3, 5))
"""Rows, and sizes of free axes, of the runs that show the shapes inside of a graph. No size appears twice."""


def has_attention(path: Path) -> bool:
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
    """Fuse attention and GELU in a model of float32, and let ONNX Runtime apply its own fusions.

    Returns:
        The graph, serialised; None if there is no attention in an exact form.

    Raises:
        ValueError: The fused graph answers differently.
        Exception: The model takes no made-up rows, or packages are missing.
    """
    import onnx

    # It logs the number of removed nodes.
    logging.getLogger("onnxruntime.transformers").setLevel(logging.WARNING)
    original = open_on_cpu(path)
    levels = onnxruntime.GraphOptimizationLevel
    with tempfile.TemporaryDirectory() as folder:
        # First, constants that exporters compute from sizes are folded. ONNX Runtime's own fusions come last.
        model = _optimise(path, levels.ORT_ENABLE_BASIC, Path(folder) / "basic.onnx")
        runs = [make_feeds(original, rows, free) for rows, free in OBSERVED_SIZES]

        def observe(names: Sequence[str]) -> list[Observation]:
            return _observe(model, names, runs)

        if not fuse_attention(model, observe):
            return None
        fuse_gelu(model)
        onnx.save(model, Path(folder) / "fused.onnx")
        model = _optimise(
            Path(folder) / "fused.onnx", levels.ORT_ENABLE_EXTENDED, Path(folder) / "extended.onnx"
        )
    content: bytes = model.SerializeToString()
    fused = open_on_cpu(content)
    for feeds in runs:
        difference = float_difference(run_session(fused, feeds), run_session(original, feeds))
        if difference > MOST_DIFFERENCE:
            raise ValueError(f"the outputs of the fused graph differ by {difference:.2g} of the largest one")
    return content


def _optimise(path: Path, level: Any, written: Path) -> Any:
    """Return a graph after the optimizations of ONNX Runtime."""
    import onnx

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(written)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(str(written))


def _observe(model: Any, names: Sequence[str], runs: Sequence[Mapping[str, np.ndarray]]) -> list[Observation]:
    """Run a graph without optimizations, and return the values of tensors inside of it."""
    import onnx

    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    outputs = {value.name for value in observed.graph.output}
    inputs = {value.name for value in observed.graph.input}
    inner = [name for name in names if name not in inputs]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner if name not in outputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        observed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [{**feeds, **dict(zip(inner, session.run(inner, dict(feeds)), strict=True))} for feeds in runs]


def make_feeds(session: onnxruntime.InferenceSession, rows: int, free: int) -> dict[str, np.ndarray]:
    """Make up inputs of `rows` rows with `free` for each free size; raise ValueError without a batch axis."""
    inputs = []
    for value in session.get_inputs():
        if not value.shape or isinstance(value.shape[0], int):
            raise ValueError(f"the first axis of its input {value.name!r} is no free size")
        sizes = (size if isinstance(size, int) else free for size in value.shape[1:])
        inputs.append(TensorInfo(value.name, DTYPES[value.type], (-1, *sizes)))
    feeds = sample_feeds(inputs, min(rows, OBSERVED_SIZES[-1][0]))
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in feeds.items()}


def run_session(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the outputs of a session by name; raise OutOfMemory if the device has no memory."""
    names = [value.name for value in session.get_outputs()]
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    try:
        outputs = with_bfloat16(session).run(names, dict(feeds), options)
    except Exception as error:
        raise_if_out_of_memory(error)
        raise
    return dict(zip(names, outputs, strict=True))
