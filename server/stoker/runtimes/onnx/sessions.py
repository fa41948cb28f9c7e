"""Sessions of ONNX Runtime: providers, options, and errors."""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnxruntime
from msgspec import Struct, field

from stoker.deployment import Deployment, Device
from stoker.errors import DeviceUnavailable, LoadFailed
from stoker.gpu.probes import probe
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.onnx.weights import UseWeights, separate_weights
from stoker.settings.choices import Acceleration

logger = logging.getLogger(__name__)

CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
CPU: Final = "CPUExecutionProvider"
_FATAL: Final = 4
"""The highest level of ONNX Runtime's loggers."""
_WEIGHTS_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_LFS: Final = b"version https://git-lfs"
Provider = str | tuple[str, dict[str, str]]
DTYPES: Final = {
    "tensor(bool)": "bool",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": "string",
}
"""The dtypes that are served, by their names in ONNX Runtime."""

# Messages of the arena, at its limit and without one, of CUDA's own calls, and of the libraries above it. The name of
# cuBLAS's error 3 differs between versions of ONNX Runtime.
_NO_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer"
    r"|Available memory of \d+ is smaller than requested bytes"
    r"|CUDA failure 2: |CUBLAS failure 3: "
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
)


CHANNELS_LAST: Final = ("auto", "tf32", "fp16")
"""Precisions in which convolutions are faster with channels last, and for which ONNX Runtime has kernels."""


def raise_if_out_of_memory(error: Exception) -> None:
    """Raise OutOfMemory if the message of an error means it; ONNX Runtime has no class for it."""
    if _NO_MEMORY.search(str(error)):
        raise OutOfMemory(str(error)) from error


def cuda_options(
    acceleration: Acceleration, *, channels_last: bool = True, stream: int | None = None, share: float = 1
) -> dict[str, str]:
    """Return the options of the CUDA provider.

    Args:
        stream: The stream in which the session captures and repeats graphs; None if it captures none.
        share: The session's share of the model's memory limit.
    """
    options = {
        # The process sees only its own device.
        "device_id": "0",
        # The default strategy doubles the arena, which never shrinks again.
        "arena_extend_strategy": "kSameAsRequested",
        # ONNX Runtime plans a convolution again for each batch whose size differs from the one before. The default
        # search takes a hundred times as long, and its result is not faster.
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        "use_tf32": "0" if acceleration.precision == "fp32" else "1",
    }
    if acceleration.precision in CHANNELS_LAST and channels_last:
        # Tensor cores take images with the channels last.
        options["prefer_nhwc"] = "1"
    if acceleration.memory_mb is not None:
        options["gpu_mem_limit"] = str(int((acceleration.memory_mb << 20) * share))
    if stream is not None:
        options |= {"enable_cuda_graph": "1", "user_compute_stream": str(stream)}
    return options


def tensorrt_options(
    acceleration: Acceleration, engines: Path | None, rows: Sequence[int], inputs: Sequence[Any]
) -> dict[str, str]:
    """Return the options of the TensorRT provider.

    Args:
        engines: The folder of built engines; None builds them at each start.
        rows: The sizes to which batches are filled up; none if batches have any size.
        inputs: The model's inputs, as ONNX Runtime describes them. If only the batch axis is free, one engine serves
            all sizes; otherwise TensorRT builds one for each new shape.
    """
    options = {"device_id": "0", "trt_fp16_enable": str(int(acceleration.precision == "fp16"))}
    if acceleration.precision == "bf16":
        options["trt_bf16_enable"] = "1"
    if acceleration.memory_mb is not None:
        options["trt_max_workspace_size"] = str(acceleration.memory_mb << 20)
    if engines is not None:
        for kind in ("engine", "timing"):
            options[f"trt_{kind}_cache_enable"] = "1"
            options[f"trt_{kind}_cache_path"] = str(engines)
    shapes = [value.shape or [] for value in inputs]
    if rows and all(shape and _free_axes(shape) == [0] for shape in shapes):
        for bound, size in (("min", min(rows)), ("opt", max(rows)), ("max", max(rows))):
            options[f"trt_profile_{bound}_shapes"] = ",".join(
                f"{value.name}:{'x'.join(map(str, [size, *shape[1:]]))}"
                for value, shape in zip(inputs, shapes, strict=True)
            )
    return options


def _free_axes(shape: Sequence[int | str | None]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if not isinstance(size, int)]


class FixedSize(Struct, frozen=True):
    """The options of a session for batches of one size.

    Attributes:
        axes: The size of each named axis that is free otherwise.
        weights: Weights on the GPU, by name, which it uses in place.
        memory_share: Its share of the model's memory limit.
    """

    axes: Mapping[str, int]
    weights: Mapping[str, onnxruntime.OrtValue] = field(default_factory=dict)
    memory_share: float = 1

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        """Set the options of a session before it is opened; the weights must outlive it."""
        for name, size in self.axes.items():
            options.add_free_dimension_override_by_name(name, size)
        for name, value in self.weights.items():
            options.add_initializer(name, value)
        if self.weights:
            # Packing would copy the weights.
            options.add_session_config_entry("session.disable_prepacking", "1")


@cache
def _silence_default_logger() -> None:
    # Its warnings, with colours, concern no session, such as that there are no plugins.
    onnxruntime.set_default_logger_severity(_FATAL)


class OnnxSessions(Struct, frozen=True):
    """Opens the sessions of one model.

    Attributes:
        deployment: The model and its settings.
        device: The device of the sessions.
        threads: Threads of one operation on the CPU.
        model: The file, or a graph made from it.
        channels_last: Whether a GPU may have the channels of images last.
        spins: Whether threads on the CPU wait for the next operation for a while without sleeping.
    """

    deployment: Deployment
    device: Device
    threads: int
    model: Path | bytes
    channels_last: bool = True
    spins: bool = False

    def open(self) -> onnxruntime.InferenceSession:
        """Open a session on the device; several threads may run it.

        Raises:
            LoadFailed: ONNX Runtime cannot load the model.
            DeviceUnavailable: The provider of the settings cannot be used.
        """
        if self.device.kind == "cpu":
            return self.open_on_cpu(self.model)
        options = cuda_options(self.deployment.acceleration, channels_last=self.channels_last)
        providers: list[Provider] = [(CUDA, options), CPU]
        if self.deployment.acceleration.provider == "tensorrt":
            providers.insert(0, (TENSORRT, self._tensorrt_options()))
        return self._open(self.model, providers)

    def open_with_graphs(self, stream: int, fixed: FixedSize | None = None) -> onnxruntime.InferenceSession:
        """Open a session that captures CUDA graphs, for one thread.

        Args:
            stream: The stream of its computation.
            fixed: The one size of its batches; None for all sizes.

        Raises:
            LoadFailed: As `open`, or an operator does not run on the GPU.
        """
        options = cuda_options(
            self.deployment.acceleration,
            channels_last=self.channels_last,
            stream=stream,
            share=1 if fixed is None else fixed.memory_share,
        )
        return self._open(self.model, [(CUDA, options), CPU], fixed)

    def nodes_on_cpu(self, fixed: FixedSize) -> list[str]:
        """Return the nodes that run on the CPU if batches have one size, as `Operator 'name'`; raise as `open`."""
        options = cuda_options(self.deployment.acceleration, channels_last=self.channels_last)
        session = self._open(self.model, [(CUDA, options), CPU], fixed)
        return [
            f"{operator} {name!r}" for provider, operator, name in _assigned_nodes(session) if provider == CPU
        ]

    def open_on_cpu(self, model: Path | bytes) -> onnxruntime.InferenceSession:
        """Open a session on the CPU; raise LoadFailed if that fails."""
        separate = separate_weights(model) if isinstance(model, Path) else None
        if separate is not None:
            for use_weights in separate.uses:
                with suppress(LoadFailed):
                    return self._open(separate.graph, [CPU], use_weights=use_weights)
        # If this fails too, the error has the reason.
        return self._open(model, [CPU])

    def _open(
        self,
        model: Path | bytes,
        providers: list[Provider],
        fixed: FixedSize | None = None,
        use_weights: UseWeights | None = None,
    ) -> onnxruntime.InferenceSession:
        _silence_default_logger()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        if not self.spins:
            # Idle threads would take the cores of the frontends.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        # Failures are raised, and callers of this module log them.
        options.log_severity_level = _FATAL
        if isinstance(model, bytes):
            options.add_session_config_entry(_WEIGHTS_FOLDER, str(self.deployment.path.parent))
        if fixed is not None:
            fixed.apply(options)
        values = [] if use_weights is None else use_weights(options)
        source = model if isinstance(model, bytes) else str(model)
        try:
            # With the fallback ONNX Runtime would print a line and use the CPU, now or when a batch fails.
            session = onnxruntime.InferenceSession(source, options, providers=providers, enable_fallback=0)
            # The options point to them until the session is open.
            values.clear()
        except Exception as error:
            raise_if_out_of_memory(error)
            advice = _advice(self.deployment.path, str(error))
            raise LoadFailed(f"ONNX Runtime cannot load {self.deployment.path}: {error}{advice}") from error
        wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if wanted not in session.get_providers():
            raise DeviceUnavailable(
                f"ONNX Runtime did not use {wanted} on {self.device} for {self.deployment.name}"
            )
        if wanted != CPU:
            _log_placement(self.deployment.name, session)
        return session

    def _tensorrt_options(self) -> dict[str, str]:
        version = _tensorrt_version()
        engines = self.deployment.engine_cache
        if engines is not None:
            # Other versions cannot read the engines.
            engines = engines / f"onnxruntime-{onnxruntime.__version__}-tensorrt-{version}"
            engines.mkdir(mode=0o700, parents=True, exist_ok=True)
        inputs = self.open_on_cpu(self.model).get_inputs()
        logger.info(
            "%s: TensorRT %d builds its engines, which can take minutes, or reads them from %s",
            self.deployment.name,
            version,
            engines,
        )
        return tensorrt_options(
            self.deployment.acceleration, engines, self.deployment.batch_buckets or (), inputs
        )


def _advice(path: Path, failure: str) -> str:
    """Return the defect of a file that ONNX Runtime cannot read; empty if it can."""
    if "INVALID_PROTOBUF" not in failure and "No graph was found" not in failure:
        return ""
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            return " It is a pointer of Git LFS, and not the file: 'git lfs pull' fetches the file."
    return f" It is no ONNX file, or not the whole of one ({path.stat().st_size} bytes)."


def _assigned_nodes(session: onnxruntime.InferenceSession) -> list[tuple[str, str, str]]:
    """Return provider, operator and name of each node; none in versions of ONNX Runtime before 1.24."""
    try:
        parts = session.get_provider_graph_assignment_info()
    except (AttributeError, RuntimeError):
        return []
    return [(part.ep_name, node.op_type, node.name) for part in parts for node in part.get_nodes()]


def _log_placement(name: str, session: onnxruntime.InferenceSession) -> None:
    """Log how many nodes do not run on the GPU."""
    nodes = _assigned_nodes(session)
    on_cpu = [operator for provider, operator, _ in nodes if provider == CPU]
    if on_cpu:
        logger.info(
            "%s: %d of %d nodes run on the CPU, not on the GPU: %s",
            name,
            len(on_cpu),
            len(nodes),
            ", ".join(sorted(set(on_cpu))),
        )


def _tensorrt_version() -> int:
    """Return the version of TensorRT as a number; raise DeviceUnavailable with the name of a missing library.

    ONNX Runtime itself would use the CUDA provider instead.
    """
    problem = probe("tensorrt")
    if problem is not None:
        raise DeviceUnavailable(f"provider: tensorrt cannot be used: {problem}")
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_tensorrt.so"
    # The function is in libnvinfer, with which this library is linked.
    return int(ctypes.CDLL(str(library)).getInferLibVersion())
