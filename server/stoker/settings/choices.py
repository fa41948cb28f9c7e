"""Small values of settings that several processes know: words of choices, GPU options, adjustments of a load."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

from stoker.errors import InvalidSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Settings = TypeVar("_Settings", bound="DataclassInstance")

ControlKind = Literal["start", "end", "ready", "id"]
"""The meaning of a control input of a model with state: whether a row starts or ends its sequence, whether it is a
row at all, or the id of its sequence."""
Admission = Literal["target", "rows"]
Late = Literal["answer", "refuse"]
Tier = Literal["high", "normal", "low"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
"""The names of tiers, by their numbers: the most urgent first."""

NonFinite = Literal["words", "null", "error"]
"""NaN and infinities are written as `NaN`, `Infinity` and `-Infinity`, as `null`, or the request fails."""

NON_FINITE: Final[tuple[NonFinite, ...]] = get_args(NonFinite)
WORDS: Final[NonFinite] = "words"


@dataclasses.dataclass(frozen=True, slots=True)
class Adjustments:
    """Settings of a model that one load replaces; None keeps the setting. See `ModelSettings`."""

    max_batch_rows: int | None = None
    max_delay_ms: float | None = None
    instances: int | None = None
    device: tuple[str, ...] | None = None
    replicas: int | None = None

    def over(self, settings: _Settings) -> _Settings:
        """Return `ModelSettings` with these values."""
        names = (field.name for field in dataclasses.fields(self))
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return dataclasses.replace(settings, **given)


Provider = Literal["cuda", "tensorrt"]
Precision = Literal["auto", "fp32", "tf32", "fp16", "bf16"]
Optimize = Literal["auto", "off"]
WayName = Literal["torch", "onnx", "tensorrt", "aoti", "tensorflow"]
"""Ways in which an imported model can run; see `stoker.models.ways`."""
WAY_NAMES: Final[tuple[WayName, ...]] = get_args(WayName)
Execution = Literal["auto", "copied", "bound", "graph", WayName]
EXECUTIONS: Final = ("auto", "copied", "bound", "graph", *WAY_NAMES)


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Settings of a model on a GPU; on the CPU they have no effect but for `xla` and `compile`.

    Attributes:
        provider: The provider of ONNX Runtime for an ONNX model: `cuda` or `tensorrt`.
        precision: Precision of matrix products and convolutions of `float32` models: `tf32` (19 bits, the default of
            ONNX Runtime and TensorFlow), `fp32`, `fp16`, or `bf16`; never `auto`.
        memory_mb: Maximum GPU memory of the model's framework in MiB; None for no limit.
        execution: How the batches of an ONNX model or one of PyTorch run: `copied` (plain calls with arrays in host
            memory), `bound` (pinned buffers and outputs that stay in place; ONNX alone), `graph` (a captured CUDA
            graph for each batch size), or `auto` (captured if it can be).
        xla: Whether TensorFlow compiles a SavedModel with XLA, once for each of its batch sizes; on the CPU too,
            where it has such sizes.
        optimize: Whether the attention of ONNX transformers is fused where that is faster.
        compile: Whether a model of PyTorch is compiled by torch.compile; on the CPU too.
    """

    provider: Provider = "cuda"
    precision: Precision = "tf32"
    memory_mb: int | None = None
    execution: Execution = "auto"
    xla: bool = False
    optimize: Optimize = "auto"
    compile: bool = False


_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "script": frozenset(),
    "sklearn": frozenset(),
    "onnx": frozenset({"memory_mb", "provider", "precision", "execution", "optimize"}),
    "tensorflow": frozenset({"memory_mb", "precision", "xla"}),
    "torch": frozenset({"memory_mb", "precision", "execution", "compile"}),
}
"""The choices that models of each framework take; other frameworks are not checked."""
_MODELS: Final = {"onnx": "ONNX models", "tensorflow": "SavedModels", "torch": "models of PyTorch"}
_ADVICE: Final = {
    "script": "an entry script sets up its framework itself",
    "sklearn": "scikit-learn computes on the CPU",
}
_CONFLICTS: Final[Sequence[tuple[str, Mapping[str, object], str]]] = (
    ("onnx", {"provider": "tensorrt", "execution": "graph"}, "execution: graph is for provider: cuda"),
    (
        "onnx",
        {"provider": "tensorrt", "precision": "fp32"},
        "TensorRT always uses TF32 for float32; leave it out",
    ),
    ("torch", {"execution": "bound"}, "execution: bound is for ONNX models; choose graph or copied"),
    ("tensorflow", {"precision": "bf16"}, "choose precision: fp16, or export the model in bfloat16"),
    (
        "tensorflow",
        {"xla": True, "precision": "fp16"},
        "mixed precision does not reach what XLA compiles; choose xla or precision: fp16, or export in float16",
    ),
)
"""Values that a framework's models cannot have, together: the framework, the values, the message."""


def check_acceleration(name: str, framework: str, acceleration: Acceleration) -> None:
    """Raise an error for settings that a model's framework lacks, and for contradictory combinations.

    Args:
        framework: `onnx`, `tensorflow`, `torch`, `sklearn` or `script`; other frameworks are not checked.
    """
    given = {
        field.name: value
        for field in dataclasses.fields(acceleration)
        if (value := getattr(acceleration, field.name)) != field.default
    }
    for setting in given:
        if setting not in _TAKES.get(framework, given):
            kinds = " and ".join(models for kind, models in _MODELS.items() if setting in _TAKES[kind])
            shown = "gpu_memory_mb" if setting == "memory_mb" else setting
            raise InvalidSettings(f"{name}: {shown} is for {kinds}; {_ADVICE.get(framework, 'leave it out')}")
    for kind, values, problem in _CONFLICTS:
        if kind == framework and values.items() <= given.items():
            raise InvalidSettings(f"{name}: {problem}")
