"""The facts about a server when it is ready for the first time, for the operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.deployment import Deployment
from stoker.errors import OperatorError
from stoker.tensors import Signature

__all__ = ["DeviceReport", "ModelReport", "StartUp"]


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model that has been loaded, with all its replicas.

    Attributes:
        deployed: The model.
        signature: What it takes and gives.
        devices: The device of each replica.
        load_s, warm_up_s: Seconds of the slowest replica.
    """

    deployed: Deployment
    signature: Signature
    devices: list[str]
    load_s: float
    warm_up_s: float


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The device that a process chose, and why."""

    device: str
    description: str
    reason: str


@dataclass(frozen=True, slots=True)
class StartUp:
    """The whole server.

    Attributes:
        devices: The device of each device process.
        models: The models in the order of the settings.
        elapsed_s: Seconds since the supervisor began.
        broken: By name and version why other versions of the settings are not served.
        pipelines: The signatures of the pipelines by name.
    """

    devices: list[DeviceReport]
    models: list[ModelReport]
    elapsed_s: float
    broken: Mapping[tuple[str, int], OperatorError] = field(default_factory=dict)
    pipelines: Mapping[str, Signature] = field(default_factory=dict)
