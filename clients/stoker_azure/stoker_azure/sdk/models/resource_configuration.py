"""`azureml.core.resource_configuration`: the cores and the memory that a model asks for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ResourceConfiguration"]


@dataclass(frozen=True, slots=True)
class ResourceConfiguration:
    """What a container of the model would get on Azure.

    Attributes:
        cpu: Cores.
        memory_in_gb: Memory in GB.
        gpu: GPUs.
    """

    cpu: float | None = None
    memory_in_gb: float | None = None
    gpu: int | None = None
