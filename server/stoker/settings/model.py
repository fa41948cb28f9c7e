"""The settings of a model: frozen, and validated once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stoker.collecting.collection import CollectionSettings, read_collection
from stoker.settings.acceleration import Execution, Precision, Provider
from stoker.settings.choices import TIERS, Admission, Late, NonFinite, Tier
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
)
from stoker.settings.sequence import SequenceSettings, read_sequence
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

__all__ = ["ModelSettings", "model_settings"]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model to serve: a bare `path` or a `registered` reference `NAME[:VERSION]`, and how to batch it."""

    path: Path | None = setting(None, read_path, "model file or folder", "PATH")
    registered: str | None = setting(None, read_text, "registered model NAME[:VERSION]", "NAME")
    name: str | None = setting(None, read_text, "service name", "NAME")
    versions: str | tuple[int, ...] | None = setting(
        None, read_versions, "which versions are served: latest (the default), latest:N, all, or 3,7", "WHICH"
    )
    labels: Mapping[str, int] | None = setting(
        None,
        read_labels,
        "names of versions for callers; the version with the label default is the default",
        "MAPPING",
    )
    canary: Mapping[str, int] | None = setting(
        None,
        read_weights,
        "weights of labels, by which requests that name no version go to their versions",
        "MAPPING",
    )
    canary_by: str | None = setting(
        None, read_sticky, "what sticks a caller to a version: key, or the name of a header", "WHAT"
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
        "percents of labels: so many of a hundred rows run on their versions too, whose answers go nowhere",
        "MAPPING",
    )
    model_dir: Path | None = setting(
        None, read_path, "folder that an entry script finds as AZUREML_MODEL_DIR", "DIR"
    )
    uses: tuple[str, ...] | None = setting(
        None, read_references, "registered models that an entry script finds there instead", "NAME[:VERSION]"
    )
    environment_variables: Mapping[str, str] | None = setting(
        None, read_variables, "environment variables of an entry script's process", "MAPPING"
    )
    max_batch_rows: int | None = setting(
        None, number_of(int, 1, 65536), "most rows in one batch (default 256)"
    )
    max_delay_ms: float | None = setting(
        None, number_of(float, 0, 60000), "how long a row may wait for company (default 0: none is added)"
    )
    pad: Mapping[str, float] | None = setting(
        None,
        read_numbers,
        "what the free sizes of an input are filled up with, so that requests of different sizes run as one batch",
        "MAPPING",
    )
    timeout_ms: int | None = setting(
        None, number_of(int, 1, 3_600_000), "a request not answered by then gets 504 (default: the server's)"
    )
    target_ms: float | None = setting(
        None,
        number_of(float, 0.1, 3_600_000),
        "how long after its request an answer is worth something: batches are made so that as many as can be are in "
        "time (default: nothing is said of that)",
    )
    late: Late = setting(
        "answer",
        choice_of("answer", "refuse"),
        "what becomes of rows that will miss target_ms: answer (when there is nothing else to do), or refuse (504 at "
        "once)",
        "WHAT",
    )
    admission: Admission | None = setting(
        None,
        choice_of("target", "rows"),
        "which requests are taken: target (those that can be in time), or rows (all, while a row is free; default: "
        "target where there is a target_ms)",
        "WHAT",
    )
    hold: float = setting(
        0.0,
        number_of(float, 0, 1),
        "for which part of the time until it has to begin a batch waits for company, 0 to 1, where there is a "
        "target_ms (default 0: not at all)",
    )
    device_share: float = setting(
        1.0,
        number_of(float, 0.001, 1000),
        "weight of its time on a device that it shares, where batches of models take turns and cannot all begin in "
        "time (default 1)",
    )
    default_tier: Tier = setting(
        "normal", choice_of(*TIERS), "how urgent requests are that do not say so: high, normal or low", "TIER"
    )
    tier_block_ms: float | None = setting(
        None,
        number_of(float, 0.1, 3_600_000),
        "the longest batch with rows of a lower tier while those of a higher one come (default: half of the smallest "
        "target of those)",
    )
    tier_floor: float = setting(
        0.05,
        number_of(float, 0, 0.9),
        "which part of the device's time rows of lower tiers get while they wait, 0 to 0.9",
    )
    load_timeout_s: float | None = setting(
        None, number_of(float, 1, 86_400), "how long it may take to load (default: the server's)"
    )
    max_concurrent_requests: int | None = setting(
        None, number_of(int, 1, 65536), "most requests in flight; further ones wait (default: no limit)"
    )
    max_queue_wait_ms: int | None = setting(
        None, number_of(int, 0, 3_600_000), "how long those wait before they get 503 (default 500)"
    )
    cache_mb: float | None = setting(
        None,
        number_of(float, 0.01, 1 << 20),
        "most MiB of answers that are kept, over all frontends: the same rows are answered without being run again "
        "(default: none are kept)",
    )
    cache_scripts: bool = setting(
        False, read_switch, "whether cache_mb may be for an entry script, whose answers may change", "BOOL"
    )
    threads: int | None = setting(
        None, number_of(int, 1, 1024), "most threads for one CPU operation (default: the cores that are left)"
    )
    description: str | None = setting(None, read_text, "a sentence for swagger.json", "TEXT")
    environment: Path | None = setting(
        None, read_path, "conda file or requirements file (default: the one beside the script)", "FILE"
    )
    environment_managed: str = setting(
        "user", choice_of("user", "system"), "who installs that: the user, or Stoker (system)", "WHO"
    )
    replicas: int | None = setting(
        None, number_of(int, 1, 64), "device processes that serve it (default: the server's)"
    )
    device: tuple[str, ...] | None = setting(
        None, read_devices, "where it runs, one device or several (default: the server's)", "DEVICE"
    )
    instances: int | None = setting(
        None,
        number_of(int, 1, 16),
        "batches that one device process runs at the same time (default: 2 on a GPU, 1 on the CPU)",
    )
    batch_buckets: tuple[int, ...] | None = setting(
        None,
        read_sizes,
        "sizes that batches are filled up to (default: powers of two on a GPU, none on the CPU)",
        "ROWS",
    )
    gpu_memory_mb: int | None = setting(
        None, number_of(int, 1, 1 << 24), "most GPU memory in MiB that it takes (default: no limit)"
    )
    provider: Provider = setting(
        "cuda", choice_of("cuda", "tensorrt"), "what runs an ONNX model on a GPU: cuda, or tensorrt", "WHAT"
    )
    precision: Precision = setting(
        "tf32",
        choice_of("fp32", "tf32", "fp16"),
        "precision of float32 products and convolutions on a GPU: fp32, tf32 or fp16",
        "WHICH",
    )
    execution: Execution = setting(
        "auto",
        choice_of("auto", "copied", "bound", "graph"),
        "how batches of an ONNX model run on a GPU: copied, bound, graph, or auto (the fastest at warm-up)",
        "HOW",
    )
    xla: bool = setting(False, read_switch, "whether TensorFlow compiles a SavedModel with XLA", "BOOL")
    batching: Literal["auto", "merge", "handle", "rows", "none"] = setting(
        "auto",
        choice_of("auto", "merge", "handle", "rows", "none"),
        "how requests are batched: auto (as far as is found to be safe), none; for a model rows (you vouch that its "
        "rows do not see each other), for an entry script merge or handle",
        "HOW",
    )
    signature: tuple[str, ...] | None = setting(
        None,
        read_names,
        "the signature of a SavedModel that is served, or several, the default first, or * for all "
        "(default: serving_default, or the only one)",
        "NAME",
    )
    audit: float | None = setting(
        None,
        read_audit,
        "how many of all batches of a model are audited, or off (default: the server's)",
        "RATE",
    )
    parity: ParityMode | None = setting(
        None,
        read_parity,
        "whether a new version has to answer as the one before: off, warn or require (default: the server's)",
        "HOW",
    )
    parity_tolerance: float | None = setting(
        None,
        number_of(float, 0, 1e6),
        "how far its answers may be from the others, relative to the largest number (default: the server's)",
    )
    parity_rows: int | None = setting(
        None, number_of(int, 1, 10_000), "most sampled requests that are compared (default: the server's)"
    )
    sample_input: Path | None = setting(
        None,
        read_path,
        "a request that the model is known to answer (default: sample_input.json beside it)",
        "FILE",
    )
    tensorflow_compat: str = setting(
        "auto",
        choice_of("auto", "v1", "off"),
        "give an entry script TensorFlow's API of version 1: v1, off, or auto (if its text needs it)",
        "API",
    )

    non_finite: NonFinite | None = setting(
        None,
        read_non_finite,
        "NaN and infinities in the JSON of its answers: words, null or error (default: the server's)",
        "WHAT",
    )
    zipmap: Literal["tensor", "objects"] = setting(
        "tensor",
        choice_of("tensor", "objects"),
        "what an ONNX model's ZipMap is in JSON that can have both: tensor, or objects by the names of the classes",
        "WHAT",
    )
    sequence: SequenceSettings | None = setting(
        None,
        read_sequence,
        "the state that an ONNX model or a script keeps between the requests of a sequence (default: none)",
        "MAPPING",
    )
    image: ImageInput | None = setting(
        None, read_image_input, "how its input is made from images (default: as it was registered)", "MAPPING"
    )
    collect: CollectionSettings | Literal[False] | None = setting(
        None,
        read_collection,
        "whether, or how, its requests and answers are collected (default: the server's)",
        "MAPPING",
    )

    said: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Names of settings that were given, also those that were given their defaults."""

    def over(self, defaults: ModelSettings) -> ModelSettings:
        """These settings, with those of `defaults` where nothing was said."""
        missing = {
            name: getattr(defaults, name)
            for name, setting in settings_of(ModelSettings).items()
            if name not in self.said and getattr(self, name) == setting.default
        }
        return dataclasses.replace(self, **missing, said=self.said | defaults.said)


def model_settings(values: Mapping[str, Any], source: str) -> ModelSettings:
    """Check the settings of one model.

    Args:
        values: The settings by name.
        source: Where they are from, for messages.

    Raises:
        InvalidSettings: One is unknown or has a bad value.
    """
    given = read_settings(ModelSettings, values, source)
    return ModelSettings(**given, said=frozenset(given))
