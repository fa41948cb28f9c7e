"""Assigns models to device processes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.deployment import Deployment
from stoker.errors import InvalidSettings
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE

__all__ = ["Group", "group"]


@dataclass(eq=False, slots=True)
class Group:
    """The models of one device process.

    Attributes:
        page: Its page of the metrics.
        device: The device setting of the process.
        members: Its models in the order of the settings, each with the number of its replica, from 0.
    """

    page: int
    device: str
    members: list[tuple[Deployment, int]] = field(default_factory=list)

    @property
    def models(self) -> list[Deployment]:
        """Its models."""
        return [model for model, _ in self.members]

    @property
    def short_name(self) -> str:
        """The name of its process in the log: its model, or the device if it has several models."""
        return str(self) if len(self.members) == 1 else self.device

    def model(self, number: int) -> Deployment:
        """Its model with this number."""
        return next(model for model in self.models if model.number == number)

    def has(self, number: int) -> bool:
        """Whether a model with this number is among them."""
        return any(model.number == number for model in self.models)

    def remove(self, model: Deployment) -> None:
        """Remove a model."""
        self.members = [member for member in self.members if member[0].number != model.number]

    def __str__(self) -> str:
        return ", ".join(_named(model, replica) for model, replica in self.members)


def group(models: Sequence[Deployment], taken: Collection[int] = ()) -> list[Group]:
    """Divide models that are loaded together into device processes.

    The replicas of a model run in different processes. ONNX models and SavedModels share the first process of a
    device, those that have a second replica there its second one, and so on. An entry script gets processes of its
    own: it reads process-wide state (AZUREML_MODEL_DIR, sys.path, helper modules of any name), and its Python code
    must not hold the interpreter lock while other models need it. The same is true of a model of scikit-learn, whose
    file is code too, of a model with a virtual environment, and of a SavedModel with process-wide settings of
    TensorFlow.

    Args:
        models: The models.
        taken: Pages of the metrics that other device processes use.

    Raises:
        InvalidSettings: There would be more processes than the metrics have pages for.
    """
    pages = [page for page in range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE) if page not in taken]
    groups: dict[Hashable, Group] = {}
    for model in models:
        devices = model.devices
        owner = model.number if _alone(model) else None
        for replica, device in enumerate(devices):
            key = (owner, device, devices[:replica].count(device))
            groups.setdefault(key, Group(0, device)).members.append((model, replica))
    if len(groups) > len(pages):
        raise InvalidSettings(
            f"at most {len(pages) + len(taken)} device processes can run, these models ask for "
            f"{len(groups) + len(taken)}; lower replicas, or spread the models over several servers"
        )
    for formed, page in zip(groups.values(), pages, strict=False):
        formed.page = page
    return list(groups.values())


def _alone(model: Deployment) -> bool:
    framework, acceleration = model.framework, model.acceleration
    if framework in ("script", "sklearn") or model.interpreter != Path(sys.executable):
        return True
    return framework == "tensorflow" and (acceleration.memory_mb, acceleration.precision) != (None, "tf32")


def _named(model: Deployment, replica: int) -> str:
    count = len(model.devices)
    return model.name if count == 1 else f"{model.name} (replica {replica + 1} of {count})"
