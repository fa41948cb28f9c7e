"""What is loaded, and where: the words that the supervisor and the device process share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from stoker.declaration import Declaration
from stoker.settings.acceleration import Acceleration
from stoker.settings.sequence import SequenceSettings
from stoker.terms import Terms

__all__ = ["SAMPLE_FILES", "SAMPLE_INPUT", "Device", "Servable", "WarmUpInput", "WarmUpRequest"]

SAMPLE_INPUT: Final = "sample_input.json"
"""The name of a file with a request body that a model is known to answer."""

SAMPLE_FILES: Final = (
    SAMPLE_INPUT,
    *(f"sample_input{suffix}" for suffix in (".npy", ".npz", ".png", ".jpg", ".jpeg", ".webp")),
)
"""What such a file beside a model may be called; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs.

    In the process of a model its GPU is the only one that CUDA sees, and so the first: a framework is given the
    ordinal 0, never `index`.

    Attributes:
        kind: `cpu`, or `cuda` for a GPU or a MIG device.
        index: Which GPU it is, or belongs to, for the operator: the N of `cuda:N`.
        description: A name to show.
        uuid: Its UUID for CUDA_VISIBLE_DEVICES: `GPU-…` or `MIG-…`; empty for the CPU.
    """

    kind: Literal["cpu", "cuda"]
    index: int
    description: str
    uuid: str = ""

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "cpu"
        return self.uuid if self.uuid.startswith("MIG-") else f"cuda:{self.index}"

    @property
    def name_in_process(self) -> str:
        """What a script calls it: `cpu` or `cuda:0`."""
        return "cpu" if self.kind == "cpu" else "cuda:0"


@dataclass(frozen=True, slots=True)
class WarmUpInput:
    """One input of a request that a model is to be warmed up with, as Triton's `model_warmup` describes it.

    Attributes:
        name: The input's name.
        data_type: Triton's name of its dtype, such as `TYPE_FP32`.
        dims: Its sizes, without the batch axis where the model has one.
        data: Where its values are from: zeros, chosen at random, or a file.
        file: That file: the values, little-endian in C order; None unless `data` says so.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    data: Literal["zero", "random", "file"]
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class WarmUpRequest:
    """A request that a model is to be warmed up with, as Triton's `model_warmup` describes it.

    Attributes:
        name: What its author calls it.
        batch_size: How many rows it has, all of the same values; 0 or 1 for a model without a batch axis.
        inputs: Its inputs.
    """

    name: str
    batch_size: int
    inputs: tuple[WarmUpInput, ...]


@dataclass(frozen=True, slots=True)
class Servable:
    """What to load.

    Attributes:
        name: Service name.
        version: Servable version.
        framework: `onnx`, `tensorflow` or `script`.
        path: The ONNX file, the SavedModel folder, or the entry script.
        model_dir: Folder that an entry script finds under `AZUREML_MODEL_DIR`.
        max_batch_rows: Most rows that `run` is given at once.
        max_body_bytes: Longest request body, for entry scripts that take it whole.
        terms: What its requests are allowed, and what is told of it.
        tensorflow_compat: Which API of TensorFlow an entry script gets: `v1` for scripts of TensorFlow 1, `off`
            for the present one, `auto` for what its text needs.
        environment_variables: Those of an entry script's process, beside the operator's.
        batching: How requests are to be batched. Of an entry script that takes whole bodies: one of
            `script_form.Batching`, or `auto` for what its self-check allows. Of a model: `auto` for what is found out
            of its rows, `rows` if the operator vouches for them, or `none`.
        sample_input: A request that the model or script is known to answer; None to look for one.
        signatures: The signatures of a SavedModel to serve, first the one that is meant where a request names none,
            or `*` for all; empty for `serving_default`, or the only one that there is.
        pad: By input what its free sizes are filled up with, so that requests of different sizes run as one batch.
        instances: Batches that run at the same time; None for what suits the device.
        batch_buckets: Sizes in rows that batches are filled up to; None for what suits the device.
        acceleration: How it uses a GPU.
        engine_cache: Folder for what TensorRT builds of it; None to build it at each start.
        warm_up: Requests that it is to be warmed up with, where its configuration for another server has some.
        declaration: What that says of its tensors; None if it has none.
        zipmap: Whether outputs that are ZipMaps are objects, rather than tensors, in JSON that can say so.
        sequence: How it keeps state between the requests of a sequence; None if it keeps none.
    """

    name: str
    version: int
    framework: str
    path: Path
    model_dir: Path
    max_batch_rows: int
    max_body_bytes: int
    terms: Terms = field(default_factory=Terms)
    tensorflow_compat: str = "auto"
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    batching: Literal["auto", "merge", "handle", "rows", "none"] = "auto"
    sample_input: Path | None = None
    signatures: tuple[str, ...] = ()
    pad: Mapping[str, float] = field(default_factory=dict)
    instances: int | None = None
    batch_buckets: tuple[int, ...] | None = None
    acceleration: Acceleration = field(default_factory=Acceleration)
    engine_cache: Path | None = None
    warm_up: tuple[WarmUpRequest, ...] = ()
    declaration: Declaration | None = None
    zipmap: Literal["tensor", "objects"] = "tensor"
    sequence: SequenceSettings | None = None

    @property
    def sample_file(self) -> Path | None:
        """A request that the model is known to answer: the setting's, or the one in its folder or beside it."""
        if self.sample_input is not None:
            return self.sample_input
        beside = (folder / name for folder in (self.model_dir, self.path.parent) for name in SAMPLE_FILES)
        return next(filter(Path.is_file, beside), None)
