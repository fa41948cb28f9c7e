"""Sessions for batches of one size each.

If a model computes shapes from the size of the batch, ONNX Runtime does so on the CPU, and CUDA cannot capture the
copies between CPU and GPU. With a fixed size these computations become constants, but each size needs a session of
its own; the sessions share their weights.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import onnxruntime
from msgspec.structs import replace

from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.sessions import FixedSize, OnnxSessions
from stoker.runtimes.onnx.shared_weights import SharedWeights, read_weights
from stoker.wire.protobuf import field
from stoker.wire.protobuf_message import Message, change_fields

logger = logging.getLogger(__name__)

BATCH_AXIS: Final = "stoker_batch_rows"
"""The name for the first axis of an input if the model does not name it."""
_GRAPH, _INPUT = 7, 11


def name_batch_axis(content: bytes, names: Sequence[str]) -> bytes:
    """Name the first axis of a model's inputs.

    Args:
        content: The model.
        names: The inputs whose first axis gets the name `BATCH_AXIS`.
    """

    def graph(part: bytes) -> bytes:
        return change_fields(part, _INPUT, value_info)

    def value_info(part: bytes) -> bytes:
        return change_fields(part, 2, type_of) if Message(part).text(1) in names else part

    def type_of(part: bytes) -> bytes:
        return change_fields(part, 1, tensor_type)

    def tensor_type(part: bytes) -> bytes:
        return change_fields(part, 2, shape)

    def shape(part: bytes) -> bytes:
        return change_fields(part, 1, lambda _: field(2, BATCH_AXIS.encode()), most=1)

    return change_fields(content, _GRAPH, graph)


class FixedSessions:
    """A session for each size of batches; see `GraphSessions`. `open` may be called on any thread."""

    shares_memory = False

    def __init__(
        self,
        sessions: OnnxSessions,
        free_axes: Mapping[str, str | None],
        sizes: Sequence[int],
        cuda: CudaRuntime | None,
        fixed_axes: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare the model; `open` opens the sessions.

        Args:
            free_axes: For each input the name of its first axis, None if it has none.
            sizes: The likely sizes, which share the memory limit.
            cuda: The device on which sessions share weights; None gives each session its own.
            fixed_axes: Sizes of further axes, by their names.
        """
        unnamed = [name for name, axis in free_axes.items() if axis is None]
        if unnamed:
            model = sessions.model
            content = model if isinstance(model, bytes) else model.read_bytes()
            sessions = replace(sessions, model=name_batch_axis(content, unnamed))
        self._sessions = sessions
        self._axes = {axis or BATCH_AXIS for axis in free_axes.values()}
        self._fixed_axes = fixed_axes or {}
        self._total_rows = sum(sizes)
        self._open: dict[int, onnxruntime.InferenceSession] = {}
        self._opening = threading.Lock()
        self._cuda = cuda
        self._weights = None if cuda is None else self._share(cuda)

    def open(self, rows: int, stream: int) -> onnxruntime.InferenceSession:
        """See `GraphSessions`."""
        with self._opening:
            if rows not in self._open:
                self._open[rows] = self._open_new(rows, stream)
            return self._open[rows]

    def close(self, rows: int) -> None:
        """See `GraphSessions`."""
        self._open.pop(rows, None)

    def nodes_on_cpu(self, rows: int) -> list[str]:
        """Return the nodes that run on the CPU in batches of a size; see `OnnxSessions.nodes_on_cpu`."""
        return self._sessions.nodes_on_cpu(self._fixed(rows))

    def _fixed(self, rows: int) -> FixedSize:
        weights = {} if self._weights is None else self._weights.values
        axes = {**self._fixed_axes, **dict.fromkeys(self._axes, rows)}
        return FixedSize(axes, weights, rows / max(rows, self._total_rows))

    def _open_new(self, rows: int, stream: int) -> onnxruntime.InferenceSession:
        weights, cuda = self._weights, self._cuda
        if weights is None or cuda is None or self._open:
            return self._sessions.open_with_graphs(stream, self._fixed(rows))
        free_bytes = cuda.free_bytes()
        session = self._sessions.open_with_graphs(stream, self._fixed(rows))
        if free_bytes - cuda.free_bytes() < weights.size_bytes:
            return session
        # ONNX Runtime silently copies weights that it does not use in place.
        logger.info(
            "%s: ONNX Runtime does not use shared weights: each size has its own",
            self._sessions.deployment.name,
        )
        del session
        self._weights = None
        return self._sessions.open_with_graphs(stream, self._fixed(rows))

    def _share(self, cuda: CudaRuntime) -> SharedWeights | None:
        folder = self._sessions.deployment.path.parent
        found = list(read_weights(self._sessions.model, folder))
        if not found:
            return None
        weights = SharedWeights(cuda, found)
        logger.info(
            "%s: %d weights of %.1f MiB are shared by sessions of fixed sizes",
            self._sessions.deployment.name,
            len(weights.values),
            weights.size_bytes / (1 << 20),
        )
        return weights
