"""What a job in a cluster is to score: a plan of its own, for files instead of callers."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.errors import InvalidSettings
from stoker.settings.readers import number_of, setting
from stoker_cluster.values import (
    read_claim,
    read_label,
    read_models_place,
    read_object_name,
    read_resource,
    read_tolerations,
    read_word,
)

__all__ = ["JobPlan"]

_GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """An Indexed Job: a pod a shard, each of which scores its part of the files.

    Attributes:
        model: The model in the image, or below the folder of the models.
        inputs: Files and folders below the claim with the data.
        output: The folder of the answers there.
        options: Further options of `stoker offline`.
    """

    name: str = setting("", read_object_name, "what the Job is called", "NAME")
    image: str = setting("", read_word, "image that the pods run", "IMAGE")
    data: str = setting("", read_claim, "PersistentVolumeClaim with the files, and for the answers", "CLAIM")
    namespace: str | None = setting(None, read_label, "namespace of the Job", "NAMESPACE")
    models: str = setting(
        "image",
        read_models_place,
        "where models are: image, oci://REFERENCE, pvc://CLAIM[/FOLDER], or in a store: http://STORE/sha256:DIGEST",
        "PLACE",
    )
    shards: int = setting(1, number_of(int, 1, 100_000), "parts, each for a pod")
    parallelism: int | None = setting(
        None, number_of(int, 1, 100_000), "pods at the same time (default: all)"
    )
    gpus: int = setting(0, number_of(int, 0, 16), "GPUs of each pod")
    gpu_resource: str = setting(_GPU_RESOURCE, read_resource, "what the cluster calls them", "NAME")
    cpu_cores: float | None = setting(None, number_of(float, 0.01, 1024), "CPU that a pod asks for")
    memory_gb: float | None = setting(None, number_of(float, 0.1, 100_000), "memory in GB of a pod")
    tolerations: tuple[str, ...] = setting(
        (), read_tolerations, "taints that the pods tolerate: NAME[=VALUE][:EFFECT], with commas", "TAINTS"
    )
    retries: int = setting(3, number_of(int, 0, 100), "how often a shard is tried again")

    model: str = ""
    inputs: tuple[str, ...] = ()
    output: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in ("name", "image", "data"):
            if not getattr(self, option):
                raise InvalidSettings(f"the Job has no {option}; give it with --{option}")
