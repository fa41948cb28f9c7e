"""Divides models into groups, each of which has a device process (decision 4)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.deployment import Deployment
from stoker.errors import InvalidSettings
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE


class Group(Struct, eq=False):
    """The models of one device process.

    Attributes:
        members: Its models in the order of the settings, each with the number of its replica, from 0.
        most: How many models it may have; None for any number.
        packs: Whether models may join it while it runs: each is loaded beside those that serve.
    """

    page: int
    device: str
    members: list[tuple[Deployment, int]] = msgspec.field(default_factory=list)
    most: int | None = None
    packs: bool = False

    @property
    def models(self) -> list[Deployment]:
        """Its models."""
        return [model for model, _ in self.members]

    @property
    def short_name(self) -> str:
        """The name of its process in the log: its model, or the device if it has several models, or may get them."""
        return str(self) if len(self.members) == 1 and not self.packs else self.device

    def model(self, number: int) -> Deployment:
        """Its model with this number."""
        return next(model for model in self.models if model.number == number)

    def has(self, number: int) -> bool:
        """Whether a model with this number is among them."""
        return any(model.number == number for model in self.models)

    def admits(self, model: Deployment, device: str) -> bool:
        """Whether a model may join it, which is loaded on this device and may share a process."""
        if self.device != device or self.has(model.number):
            return False
        return self.most is None or len(self.members) < self.most

    def remove(self, model: Deployment) -> None:
        """Remove a model."""
        self.members = [member for member in self.members if member[0].number != model.number]

    def __str__(self) -> str:
        return ", ".join(_named(model, replica) for model, replica in self.members)


def group(
    models: Sequence[Deployment],
    taken: Collection[int] = (),
    most: int | None = None,
    running: Sequence[Group] = (),
    apart: Collection[int] = (),
) -> list[Group]:
    """Divide models that are loaded together into device processes.

    The replicas of a model run in different processes. ONNX models and SavedModels share the first process of a
    device that has room, those that have a second replica there its second one, and so on. An entry script gets
    processes of its own: it reads process-wide state (AZUREML_MODEL_DIR, sys.path, helper modules of any name), and
    its Python code must not hold the interpreter lock while other models need it. The same is true of a model of
    scikit-learn, whose file is code too, of a model of PyTorch, whose threads and precision are the process's, of a
    model with a virtual environment, and of a SavedModel with process-wide settings of TensorFlow.

    Args:
        taken: Pages of the metrics that other device processes use.
        most: How many models may share a process; None for any number, none of which joins later.
        running: Groups of running processes that models may join.
        apart: Numbers of models that get processes of their own although they might share one.

    Returns:
        The new groups. Models that have joined running ones are members of these.
    """
    pages = [page for page in range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE) if page not in taken]
    groups: list[Group] = []
    joined: list[tuple[Group, Deployment]] = []
    for model in models:
        alone = _alone(model) or model.number in apart
        packed = not alone and may_be_packed(model, most)
        for replica, device in enumerate(model.devices):
            known = (one for one in (*running, *groups) if one.packs == packed and one.admits(model, device))
            found = next(known, None)
            if found is None or alone:
                found = Group(0, device, most=1 if alone else most, packs=packed)
                groups.append(found)
            elif found in running:
                joined.append((found, model))
            found.members.append((model, replica))
    if len(groups) > len(pages):
        for found, model in joined:
            found.remove(model)
        raise InvalidSettings(
            f"at most {len(pages) + len(taken)} device processes can run, these models ask for "
            f"{len(groups) + len(taken)}; lower replicas, or spread the models over several servers"
        )
    for formed, page in zip(groups, pages, strict=False):
        formed.page = page
    return groups


def may_be_packed(model: Deployment, most: int | None) -> bool:
    """Whether a model may be loaded into a process whose models serve, where that is asked for.

    Only ONNX Runtime loads without holding the interpreter lock for long; CUDA graphs cannot be captured there.
    """
    if most in (None, 1) or model.framework != "onnx" or model.acceleration.execution == "graph":
        return False
    return not _alone(model)


def _alone(model: Deployment) -> bool:
    framework, acceleration = model.framework, model.acceleration
    if framework in ("script", "sklearn", "torch") or model.interpreter != Path(sys.executable):
        return True
    return framework == "tensorflow" and (acceleration.memory_mb, acceleration.precision) != (None, "tf32")


def _named(model: Deployment, replica: int) -> str:
    count = len(model.devices)
    return model.name if count == 1 else f"{model.name} (replica {replica + 1} of {count})"
