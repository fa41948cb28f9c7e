"""A model as it is served: what to load, how to batch it, where it runs, and the limits of its requests.

`stoker.models.deployments` makes a `Deployment` from the settings. The supervisor sends it whole to device processes
and frontends, so a setting that a model has under the same name in `ModelSettings` needs one line here, and is read
where it is used.

See decision 47.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

from msgspec import Struct

from stoker.settings.choices import WORDS, Acceleration, Adjustments, Admission, Late, NonFinite, Tier
from stoker.settings.collection import CollectionSettings
from stoker.settings.image_input import ImageInput
from stoker.settings.model_limits import ModelLimit
from stoker.settings.readers import DEVICE_SEPARATOR
from stoker.settings.sequence import SequenceSettings
from stoker.settings.text_input import TextInput
from stoker.settings.traffic import Bounds, Parity

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


class Device(Struct, frozen=True):
    """The device that a model runs on.

    In a device process the model's GPU is the only one visible to CUDA, and so the first: frameworks use ordinal 0,
    never `index`. An entry script may have several: then they are visible in this order.

    Attributes:
        kind: `cpu`, or `cuda` for a GPU or a MIG device.
        index: For the operator: the N of `cuda:N`, of the GPU or of the GPU that the MIG device belongs to.
        description: Its name for display; with that of further GPUs.
        uuid: Its UUID: `GPU-…` or `MIG-…`; empty for the CPU.
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


class DeclaredTensor(Struct, frozen=True):
    """One input or output as callers see it.

    Attributes:
        dtype: Name of the numpy dtype, or `string`.
        shape: Its shape, including the batch axis if the model has one; -1 for free sizes.
        model_shape: Its shape in the model, if different.
        labels: What the values of a row of an output are called, for classification; empty if nothing is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    model_shape: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()


class Declaration(Struct, frozen=True):
    """The tensors of a model.

    Attributes:
        batched: Whether the first axes are one batch axis; None if not declared.
    """

    source: str
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    batched: bool | None = None


class WarmUpInput(Struct, frozen=True):
    """One input of a warm-up request, as described by Triton's `model_warmup`.

    Attributes:
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


class WarmUpRequest(Struct, frozen=True):
    """A warm-up request, as described by Triton's `model_warmup`.

    Attributes:
        batch_size: Number of rows, all with the same values; 0 or 1 for a model without a batch axis.
    """

    name: str
    batch_size: int
    inputs: tuple[WarmUpInput, ...]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A version of a model as this server serves it.

    A field with the name of a setting (`ModelSettings`) is that of the model, or else of the server.

    Attributes:
        framework: `onnx`, `tensorflow`, `torch`, `sklearn` or `script`.
        path: The ONNX file, the SavedModel folder, the estimator's file, or the entry script.
        model_dir: Folder that an entry script finds under `AZUREML_MODEL_DIR`.
        number: Identifies this load among all loads of the server, those of the same version too.
        fingerprint: Changes when its files do; see `ModelSource.fingerprint`.
        origin: The origin of a registered version, such as its run; empty for others.
        notes: What the operator should know of its configuration, a line each.
        adjustments: The settings that the request to load it has changed.
        on_demand: Whether it is loaded when it is asked for, and may be unloaded to make room for others.
        devices: The device setting of each replica: `auto`, `cpu`, `cuda:N` or a UUID.
        shortfall: Why there are fewer replicas than were asked for; empty if there are not.
        threads: The most threads that each replica uses for one operation on the CPU.
        environment: The file with the packages that it requires; None without one.
        environment_lines: What the operator should know of its packages, once they are prepared.
        signatures: The signatures of a SavedModel to serve, the default one first, or `*` for all; empty for
            `serving_default`, or the only one.
        declaration: The tensors declared by its configuration for another server; None if it declares none.
        model_config: Triton's configuration as JSON, of a `model.py` for its Python backend; empty for all others.
        captures: Whether CUDA graphs may be captured; not beside models that serve, whose calls CUDA would refuse.
        engine_cache: Folder for engines built by TensorRT, fused graphs and compiled code; None to build them at each
            start.
        limit: The limit of its group of models; None without.
        cache_bytes: Limit of its response cache, over all frontends; 0 for no cache.
        swagger_files: The user's own API descriptions by Swagger version.
        collection: What is collected of its requests and answers; None for nothing.
        data_dir: Folder of the collected records; None if nothing is collected.
        model_data_dir: Folder of the rows that an entry script collects itself; None if it may not.
    """

    name: str
    version: int
    framework: str
    path: Path
    model_dir: Path
    max_batch_rows: int
    max_body_bytes: int
    number: int = 0
    slot: int = 0
    fingerprint: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    description: str | None = None
    adjustments: Adjustments = field(default_factory=Adjustments)
    on_demand: bool = False
    min_residence_s: float = 0.0
    devices: tuple[str, ...] = ("cpu",)
    shortfall: str = ""
    threads: int = 1
    environment: Path | None = None
    environment_managed: str = "user"
    environment_lines: tuple[str, ...] = ()
    interpreter: Path = Path(sys.executable)
    environment_variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    tensorflow_compat: str = "auto"
    model_class: str | None = None
    allow_pickle: bool = False
    signatures: tuple[str, ...] = ()
    declaration: Declaration | None = None
    model_config: str = ""
    warm_up: tuple[WarmUpRequest, ...] = ()
    sample_input: Path | None = None
    zipmap: Literal["tensor", "objects"] = "tensor"
    sequence: SequenceSettings | None = None
    image: ImageInput | None = None
    text: TextInput | None = None
    acceleration: Acceleration = field(default_factory=Acceleration)
    captures: bool = True
    engine_cache: Path | None = None
    load_timeout_s: float = math.inf
    warm_up_runs: int = 1
    batching: Literal["auto", "merge", "handle", "rows", "none"] = "auto"
    max_delay_ms: float = 0.0
    batch_buckets: tuple[int, ...] | None = None
    pad: Mapping[str, float] = field(default_factory=dict)
    instances: int | None = None
    audit: float = 0.0
    device_share: float = 1.0
    timeout_ms: int = 60_000
    target_ms: float | None = None
    late: Late = "answer"
    admission: Admission = "rows"
    default_tier: Tier = "normal"
    limit: ModelLimit | None = None
    max_concurrent_requests: int | None = None
    max_queue_wait_ms: int = 500
    cache_bytes: int = 0
    swagger_files: Mapping[str, Path] = field(default_factory=dict)
    non_finite: NonFinite = WORDS
    collection: CollectionSettings | None = None
    data_dir: Path | None = None
    model_data_dir: Path | None = None
    rollback: Bounds | None = field(default_factory=Bounds)
    parity: Parity = field(default_factory=Parity)

    @property
    def sample_file(self) -> Path | None:
        """A request that the model is known to answer: from the setting, or found in its folder or beside it."""
        if self.sample_input is not None:
            return self.sample_input
        beside = (folder / name for folder in (self.model_dir, self.path.parent) for name in SAMPLE_FILES)
        return next(filter(Path.is_file, beside), None)

    def file_key(self) -> tuple[object, ...]:
        """The key of findings on an ONNX model that is loaded on demand: its settings, and its files as they are now.

        Empty for models that a process loads once.
        """
        if not self.on_demand or self.framework != "onnx":
            return ()
        key: list[object] = [self.number]
        for path in (self.path, *(() if self.text is None else (self.text.tokenizer,))):
            file = path.stat()
            key += [path, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns]
        return tuple(key)

    @property
    def code_of_load(self) -> str:
        """The code that a file of the model runs while it is loaded, in words; empty if none."""
        match self.framework:
            case "script" if self.path.parent.name == "mlflow_entry":
                return f"the code that pickles in {self.model_dir.name} name"
            case "script":
                return f"the code of {self.path.name}"
            case "torch" if kind_of_torch_file(self.path) == "aotinductor":
                return f"the compiled code of {self.path.name}"
            case "torch" if self.allow_pickle:
                return f"the code that pickles in {self.path.name} name"
            case "torch" if self.model_class is not None:
                return f"the code of {self.model_class}"
            case "sklearn" if library_of_booster(self.path) is None:
                return f"the code that the pickle {self.path.name} names"
            case _:
                return ""

    def share_of(self, frontend: int, frontends: int) -> Deployment:
        """Return the deployment as one of several frontends serves it.

        The shares of `max_concurrent_requests` add up to it, unless there are more frontends than requests: each
        admits at least one. Those of `cache_bytes` add up to at most that. Frontends get no environment variables
        of scripts, which may hold secrets.
        """
        limit = self.max_concurrent_requests
        if limit is not None:
            limit = max(1, limit // frontends + (frontend < limit % frontends))
        return dataclasses.replace(
            self,
            max_concurrent_requests=limit,
            cache_bytes=self.cache_bytes // frontends,
            environment_variables={},
        )


_Finding = TypeVar("_Finding")
_MOST_FINDINGS: Final = 10_000


class KeptFindings(Generic[_Finding]):
    """Findings on models that are loaded on demand: a test at each load would hold up the models that serve."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[object, ...], _Finding] = {}

    def get(self, key: tuple[object, ...]) -> _Finding | None:
        """Return what was found under a `Deployment.file_key`; None if nothing was, or the key is empty."""
        return self._by_key.get(key)

    def keep(self, key: tuple[object, ...], finding: _Finding) -> None:
        """Keep a finding, unless the key is empty or there are too many."""
        if key and len(self._by_key) < _MOST_FINDINGS:
            self._by_key[key] = finding


def kind_of_torch_file(path: Path) -> Literal["program", "aotinductor", "torchscript", "weights", ""]:
    """Return what PyTorch has saved in a file: of what is in its ZIP archive; empty for other files."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return ""
    if any("/data/aotinductor/" in name for name in names):
        return "aotinductor"
    if any("/code/" in name for name in names):
        return "torchscript"
    if any("/models/" in name or name == "serialized_exported_program.json" for name in names):
        return "program"
    return "weights" if any(name.endswith("data.pkl") for name in names) else ""


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
