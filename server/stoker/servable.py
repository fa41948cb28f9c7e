"""Descriptions of what to load and where, shared by the supervisor and the device process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from stoker.declaration import Declaration
from stoker.settings.choices import Acceleration
from stoker.settings.readers import DEVICE_SEPARATOR
from stoker.settings.sequence import SequenceSettings
from stoker.terms import Terms

__all__ = [
    "SAMPLE_FILES",
    "SAMPLE_INPUT",
    "Device",
    "Servable",
    "WarmUpInput",
    "WarmUpRequest",
    "code_of_load",
    "library_of_booster",
]

SAMPLE_INPUT: Final = "sample_input.json"
"""Name of a file with a request that a model is known to answer."""

SAMPLE_FILES: Final = (
    SAMPLE_INPUT,
    *(f"sample_input{suffix}" for suffix in (".npy", ".npz", ".png", ".jpg", ".jpeg", ".webp")),
)
"""Names of such a file beside a model; the first existing one is used."""

_BOOSTERS: Final = {
    b'{"learner":': "xgboost",
    b"{L\x00\x00\x00\x00": "xgboost",
    b"tree\nversion=": "lightgbm",
}
"""How the files of boosters begin."""
_BOOSTER_SUFFIXES: Final = (".bst", ".json", ".txt", ".ubj")


@dataclass(frozen=True, slots=True)
class Device:
    """The device that a model runs on.

    In a device process the model's GPU is the only one visible to CUDA, and so the first: frameworks use ordinal 0,
    never `index`. An entry script may have several: then they are visible in this order.

    Attributes:
        kind: `cpu`, or `cuda` for a GPU or a MIG device.
        index: For the operator: the N of `cuda:N`, of the GPU or of the GPU that the MIG device belongs to.
        description: Its name for display; with that of further GPUs.
        uuid: Its UUID: `GPU-…` or `MIG-…`; empty for the CPU.
        further: The GPUs beside it that the same process sees.
    """

    kind: Literal["cpu", "cuda"]
    index: int
    description: str
    uuid: str = ""
    further: tuple[Device, ...] = ()

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "cpu"
        own = self.uuid if self.uuid.startswith("MIG-") else f"cuda:{self.index}"
        return DEVICE_SEPARATOR.join([own, *map(str, self.further)])

    @property
    def gpus(self) -> tuple[Device, ...]:
        """All GPUs that the process sees, this one first; none for the CPU."""
        return () if self.kind == "cpu" else (self, *self.further)

    @property
    def visible(self) -> str:
        """Their UUIDs, as CUDA_VISIBLE_DEVICES has them; empty for the CPU."""
        return ",".join(gpu.uuid for gpu in self.gpus)

    @property
    def name_in_process(self) -> str:
        """The device's name in its process, for scripts: `cpu` or `cuda:0`."""
        return "cpu" if self.kind == "cpu" else "cuda:0"


@dataclass(frozen=True, slots=True)
class WarmUpInput:
    """One input of a warm-up request, as described by Triton's `model_warmup`.

    Attributes:
        name: The input's name.
        data_type: Triton's name of its dtype, such as `TYPE_FP32`.
        dims: Its shape, without the batch axis if the model has one.
        data: The source of its values: zeros, random numbers, or a file.
        file: That file: the values, little-endian in C order; None for other sources.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    data: Literal["zero", "random", "file"]
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class WarmUpRequest:
    """A warm-up request, as described by Triton's `model_warmup`.

    Attributes:
        name: Its name in the configuration.
        batch_size: Number of rows, all with the same values; 0 or 1 for a model without a batch axis.
        inputs: Its inputs.
    """

    name: str
    batch_size: int
    inputs: tuple[WarmUpInput, ...]


@dataclass(frozen=True, slots=True)
class Servable:
    """A model or script to load, with its settings.

    Attributes:
        name: Service name.
        version: Servable version.
        framework: `onnx`, `tensorflow` or `script`.
        path: The ONNX file, the SavedModel folder, or the entry script.
        model_dir: Folder that an entry script finds under `AZUREML_MODEL_DIR`.
        max_batch_rows: Limit of rows per call of the model.
        max_body_bytes: Limit of a request's body, for entry scripts that take whole bodies.
        terms: Limits and facts that apply to its requests.
        tensorflow_compat: Which API of TensorFlow an entry script gets: `v1` for scripts of TensorFlow 1, `off`
            for the present one, `auto` for what its text needs.
        environment_variables: Variables of an entry script's process, in addition to the operator's.
        batching: How requests are batched. For an entry script that takes whole bodies: one of
            `script_form.Batching`, or `auto` for what its self-check allows. For a model: `auto` for the verdict on
            its rows, `rows` if the operator vouches for them, or `none`.
        sample_input: A request that the model or script is known to answer; None to look for one.
        signatures: The signatures of a SavedModel to serve, the default one first, or `*` for all; empty for
            `serving_default`, or the only one.
        pad: Padding value by input for its free sizes, so that requests of different sizes run as one batch.
        instances: Number of concurrent batches; None for the device's default.
        batch_buckets: Sizes in rows that batches are padded to; None for the device's default.
        acceleration: How it uses a GPU.
        engine_cache: Folder for engines built by TensorRT; None to build them at each start.
        warm_up: Warm-up requests from its configuration for another server.
        declaration: The tensors declared by that configuration; None if it declares none.
        zipmap: Whether ZipMap outputs are objects in JSON protocols that allow it, instead of tensors.
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
        """A request that the model is known to answer: from the setting, or found in its folder or beside it."""
        if self.sample_input is not None:
            return self.sample_input
        beside = (folder / name for folder in (self.model_dir, self.path.parent) for name in SAMPLE_FILES)
        return next(filter(Path.is_file, beside), None)


def code_of_load(servable: Servable) -> str:
    """Return what code a file of a model runs while it is loaded, in words; empty for those that run none."""
    match servable.framework:
        case "script":
            return f"the code of {servable.path.name}"
        case "mlflow":
            return f"the code that the pickles of {servable.path.name} hold"
        case "sklearn" if library_of_booster(servable.path) is None:
            return f"the code that the pickle {servable.path.name} holds"
        case _:
            return ""


def library_of_booster(path: Path) -> str | None:
    """Return `xgboost` or `lightgbm` for a booster in that library's own format; None for other files."""
    if path.suffix not in _BOOSTER_SUFFIXES:
        return None
    try:
        with path.open("rb") as file:
            begin = file.read(max(map(len, _BOOSTERS)))
    except OSError:
        return None
    return next((library for start, library in _BOOSTERS.items() if begin.startswith(start)), None)
