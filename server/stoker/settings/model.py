"""The settings of a model: frozen, and validated once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stoker.settings.choices import (
    EXECUTIONS,
    TIERS,
    Admission,
    Execution,
    Late,
    NonFinite,
    Optimize,
    Precision,
    Provider,
    Tier,
)
from stoker.settings.collection import CollectionSettings, read_collection
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.settings.readers import (
    choice_of,
    number_of,
    read_audit,
    read_devices,
    read_names,
    read_non_finite,
    read_numbers,
    read_path,
    read_references,
    read_settings,
    read_sizes,
    read_switch,
    read_text,
    read_variables,
    setting,
    settings_of,
    text_of,
)
from stoker.settings.sequence import SequenceSettings, read_sequence
from stoker.settings.text_input import TextSettings, read_text_settings
from stoker.settings.traffic import (
    Bounds,
    ParityMode,
    read_parity,
    read_percents,
    read_rollback,
    read_sticky,
    read_weights,
)
from stoker.settings.versions import read_labels, read_versions

_MILLISECONDS = number_of(float, 0.1, 3_600_000)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model to serve: a bare `path` or a `registered` reference `NAME[:VERSION]`, and how to batch it."""

    path: Path | None = setting(None, read_path, "model file or folder", "PATH")
    registered: str | None = setting(None, read_text, "registered model NAME[:VERSION]", "NAME")
    name: str | None = setting(None, read_text, "service name (default: that of the file or folder)", "NAME")
    versions: str | tuple[int, ...] | None = setting(
        None, read_versions, "versions to serve: latest (default), latest:N, all, or 3,7", "WHICH"
    )
    labels: Mapping[str, int] | None = setting(
        None, read_labels, "versions by label; the label default is the default version", "MAPPING"
    )
    canary: Mapping[str, int] | None = setting(
        None, read_weights, "weights of labels for requests that name no version", "MAPPING"
    )
    canary_by: str | None = setting(
        None, read_sticky, "what keeps a caller on one version: key, or a header name", "WHAT"
    )
    rollback: Bounds | Literal[False] | None = setting(
        None,
        read_rollback,
        "when a version loses its weight: requests, error_rate and latency_ratio, or off (default: 100, 0.01, 2)",
        "MAPPING",
    )
    shadow: Mapping[str, int] | None = setting(
        None,
        read_percents,
        "percentage of rows by label that also run on its version; answers are dropped",
        "MAPPING",
    )
    model_dir: Path | None = setting(None, read_path, "AZUREML_MODEL_DIR of an entry script", "DIR")
    uses: tuple[str, ...] | None = setting(
        None,
        read_references,
        "registered models below AZUREML_MODEL_DIR of an entry script",
        "NAME[:VERSION]",
    )
    environment_variables: Mapping[str, str] | None = setting(
        None, read_variables, "environment variables of an entry script's process", "MAPPING"
    )
    max_batch_rows: int | None = setting(
        None, number_of(int, 1, 65536), "maximum rows of a batch (default 256)"
    )
    max_delay_ms: float | None = setting(
        None, number_of(float, 0, 60000), "how long a row may wait for a fuller batch (default 0)"
    )
    pad: Mapping[str, float] | None = setting(
        None,
        read_numbers,
        "padding values of inputs with free sizes, so that unequal requests share batches",
        "MAPPING",
    )
    timeout_ms: int | None = setting(
        None, number_of(int, 1, 3_600_000), "timeout of requests, answered with 504 (default: the server's)"
    )
    target_ms: float | None = setting(
        None,
        _MILLISECONDS,
        "latency target in ms: batches are made so that the most requests meet it (default: none)",
    )
    late: Late = setting(
        "answer",
        choice_of("answer", "refuse"),
        "requests that cannot meet target_ms: answer them last (default), or refuse them with 504",
        "WHAT",
    )
    admission: Admission | None = setting(
        None,
        choice_of("target", "rows"),
        "which requests are queued: target (those that can meet target_ms; the default with one), or rows (all)",
        "WHAT",
    )
    device_share: float = setting(
        1.0,
        number_of(float, 0.001, 1000),
        "weight of the model's time on a device that models share (default 1)",
    )
    default_tier: Tier = setting(
        "normal", choice_of(*TIERS), "tier of requests that name none: high, normal or low", "TIER"
    )
    load_timeout_s: float | None = setting(
        None, number_of(float, 1, 86_400), "time limit for loading (default: the server's)"
    )
    always_loaded: bool = setting(
        False, read_switch, "load the model at the start, and keep it where memory_mb is set", "BOOL"
    )
    min_residence_s: float = setting(
        0.0,
        number_of(float, 0, 86_400),
        "how long the model stays once it is loaded where memory_mb is set (default 0)",
    )
    max_concurrent_requests: int | None = setting(
        None, number_of(int, 1, 65536), "maximum requests in flight; others wait (default: no limit)"
    )
    max_queue_wait_ms: int | None = setting(
        None, number_of(int, 0, 3_600_000), "how long those wait before they get 503 (default 500)"
    )
    cache_mb: float | None = setting(
        None,
        number_of(float, 0.01, 1 << 20),
        "size of the answer cache in MiB, of all frontends; an entry script's answers must not change "
        "(default: no cache)",
    )
    threads: int | None = setting(
        None,
        number_of(int, 1, 1024),
        "most threads for one CPU operation (default: as many as there are cores; of a script or scikit-learn, "
        "those that frontends leave)",
    )
    description: str | None = setting(None, read_text, "description in swagger.json", "TEXT")
    environment: Path | None = setting(
        None, read_path, "conda or requirements file (default: the one beside the script)", "FILE"
    )
    environment_managed: str = setting(
        "user",
        choice_of("user", "system"),
        "who installs these packages: the user, or Stoker (system)",
        "WHO",
    )
    replicas: int | None = setting(
        None, number_of(int, 1, 64), "device processes that serve the model (default: the server's)"
    )
    device: tuple[str, ...] | None = setting(
        None, read_devices, "device or devices of the model (default: the server's)", "DEVICE"
    )
    instances: int | None = setting(
        None,
        number_of(int, 1, 16),
        "batches to run at once per device process (default: 2 on a GPU; 1 on the CPU, up to 4 for texts)",
    )
    batch_buckets: tuple[int, ...] | None = setting(
        None,
        read_sizes,
        "sizes that batches are padded to (default: on a GPU those that pay, by timing them; none on the CPU)",
        "ROWS",
    )
    gpu_memory_mb: int | None = setting(
        None, number_of(int, 1, 1 << 24), "maximum GPU memory in MiB (default: no limit)"
    )
    provider: Provider = setting(
        "cuda", choice_of("cuda", "tensorrt"), "provider of ONNX models on a GPU: cuda or tensorrt", "WHAT"
    )
    precision: Precision = setting(
        "auto",
        choice_of("auto", "fp32", "tf32", "fp16", "bf16"),
        "precision of float32 models on a GPU: fp32, tf32, fp16, bf16, or auto (tf32)",
        "WHICH",
    )
    execution: Execution = setting(
        "auto",
        choice_of(*EXECUTIONS),
        "how batches of an ONNX or PyTorch model run on a GPU: copied, bound, graph, or auto (captured if possible); "
        "or the way of an imported model: torch, onnx, tensorrt, aoti, tensorflow (default: the fastest that agrees)",
        "HOW",
    )
    optimize: Optimize = setting(
        "auto",
        choice_of("auto", "off"),
        "fuse the attention of ONNX transformers on a GPU: auto (where that is faster) or off",
        "WHETHER",
    )
    xla: bool = setting(False, read_switch, "compile a SavedModel with XLA", "BOOL")
    compile: bool = setting(False, read_switch, "compile a PyTorch model with torch.compile", "BOOL")
    warm_up_runs: int = setting(
        1,
        number_of(int, 1, 1000),
        "how often each of its first batches runs before it is ready, for devices that are slow at first (default 1)",
    )
    batching: Literal["auto", "merge", "handle", "rows", "none"] = setting(
        "auto",
        choice_of("auto", "merge", "handle", "rows", "none"),
        "how requests are batched: auto (where it is safe), none, rows (you vouch that rows of a model are "
        "independent), or merge or handle for an entry script",
        "HOW",
    )
    signature: tuple[str, ...] | None = setting(
        None,
        read_names,
        "signatures of a SavedModel, the default first, or * for all (default: serving_default, or the only one)",
        "NAME",
    )
    audit: float | None = setting(
        None, read_audit, "share of batches that are audited, or off (default: the server's)", "RATE"
    )
    parity: ParityMode | None = setting(
        None,
        read_parity,
        "compare a new version with its predecessor: off, warn or require (default: the server's)",
        "HOW",
    )
    parity_tolerance: float | None = setting(
        None,
        number_of(float, 0, 1e6),
        "allowed difference, relative to the largest number (default: the server's)",
    )
    sample_input: Path | None = setting(
        None, read_path, "a valid request (default: sample_input.json beside the model)", "FILE"
    )
    tensorflow_compat: str = setting(
        "auto",
        choice_of("auto", "v1", "off"),
        "TensorFlow's API of version 1 for an entry script: v1, off, or auto (if the script needs it)",
        "API",
    )
    model_class: str | None = setting(
        None,
        text_of(re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"), "must be MODULE:CLASS"),
        "class of a PyTorch model whose file holds weights alone, in a module beside it",
        "MODULE:CLASS",
    )
    allow_pickle: bool | None = setting(
        None,
        read_switch,
        "load files of models that run code of their author (default: the server's)",
        "BOOL",
    )
    non_finite: NonFinite | None = setting(
        None,
        read_non_finite,
        "NaN and infinities in JSON: words, null or error (default: the server's)",
        "WHAT",
    )
    zipmap: Literal["tensor", "objects"] = setting(
        "tensor",
        choice_of("tensor", "objects"),
        "an ONNX model's ZipMap in JSON: tensor, or objects with the classes as names",
        "WHAT",
    )
    sequence: SequenceSettings | None = setting(
        None,
        read_sequence,
        "state that a model keeps between requests of a sequence (default: none)",
        "MAPPING",
    )
    image: ImageInput | None = setting(
        None,
        read_image_input,
        "how images become the input, such as size=28x28,invert (default: as registered)",
        "SPEC",
    )
    text: TextSettings | Literal[False] | None = setting(
        None,
        read_text_settings,
        "texts that a tokenizer.json beside the model makes its input, or off (default: if there is one)",
        "MAPPING",
    )
    collect: CollectionSettings | Literal[False] | None = setting(
        None, read_collection, "collection of requests and answers (default: the server's)", "MAPPING"
    )

    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Names of the settings that were given, including those given their defaults."""

    def over(self, defaults: ModelSettings) -> ModelSettings:
        """Return these settings, with those of `defaults` where none were given."""
        missing = {
            name: getattr(defaults, name)
            for name, setting in settings_of(ModelSettings).items()
            if name not in self.given and getattr(self, name) == setting.default
        }
        return dataclasses.replace(self, **missing, given=self.given | defaults.given)


def model_settings(values: Mapping[str, Any], source: str) -> ModelSettings:
    """Check the settings of one model.

    Args:
        source: Where they are from, for messages.
    """
    given = read_settings(ModelSettings, values, source)
    return ModelSettings(**given, given=frozenset(given))
