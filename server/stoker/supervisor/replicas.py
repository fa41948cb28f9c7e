"""The replicas that device processes have loaded."""

from __future__ import annotations

import dataclasses

import msgspec
from msgspec import Struct

from stoker.control.device_messages import Loaded
from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.row_isolation import RowIsolation
from stoker.supervisor.groups import Group
from stoker.supervisor.reports import ModelReport
from stoker.tensors import Signature


class Replica(Struct, frozen=True):
    """A model that one device process has loaded.

    Attributes:
        load: The report of its process.
        generation: A number that is unique to this load.
    """

    model: Deployment
    load: Loaded
    device: str
    generation: int

    @property
    def signature(self) -> Signature:
        """The layout of its rows."""
        return self.load.signature


class Replicas:
    """The loaded replicas, over all restarts of device processes."""

    def __init__(self) -> None:
        self._loaded: dict[Group, list[Replica]] = {}
        self._generation = 0
        self._isolations: dict[int, RowIsolation] = {}
        """By a model's number the finding of a running replica, which later processes of the model must respect."""

    def join(self, group: Group) -> None:
        """Add the group of a new device process."""
        self._loaded[group] = []

    def leave(self, group: Group) -> None:
        """Remove a device process that will not be restarted."""
        del self._loaded[group]

    def add(self, group: Group, load: Loaded, device: str) -> Replica:
        """Record that a group's device process has loaded a model.

        Raises:
            LoadFailed: Its tensors differ from those of the replicas that are loaded already.
        """
        model = group.model(load.number)
        for other in self.of(model):
            if _callers_view(other.signature) != _callers_view(load.signature):
                raise LoadFailed(
                    f"the replicas of {model.name} differ: {load.signature} on {device}, but "
                    f"{other.signature} on {other.device}; if the model has changed, start the server anew"
                )
        self._generation += 1
        replica = Replica(model, load, device, self._generation)
        self._loaded[group].append(replica)
        return replica

    def change_isolation(self, model: Deployment, isolation: RowIsolation) -> None:
        """Record a new finding on whether a model's rows may share batches."""
        self._isolations[model.number] = isolation
        for group, loaded in self._loaded.items():
            self._loaded[group] = [
                msgspec.structs.replace(replica, load=with_isolation(replica.load, isolation))
                if replica.model.number == model.number
                else replica
                for replica in loaded
            ]

    def found_isolation(self, number: int) -> RowIsolation | None:
        """The finding of a running replica of the model with this number; None without one."""
        return self._isolations.get(number)

    def forget(self, model: Deployment) -> None:
        """Forget the findings on a model, which is not loaded again."""
        self._isolations.pop(model.number, None)

    def remove(self, group: Group) -> list[Replica]:
        """Record that a group's device process has ended; returns its replicas."""
        lost, self._loaded[group] = self._loaded[group], []
        return lost

    def unload(self, group: Group, model: Deployment) -> None:
        """Record that a group's device process does not serve a model any more."""
        self._loaded[group] = [
            replica for replica in self._loaded[group] if replica.model.number != model.number
        ]

    def is_complete(self, model: Deployment) -> bool:
        """Whether every replica of a model is loaded."""
        return len(self.of(model)) == len(model.devices)

    def in_group(self, group: Group) -> list[Replica]:
        """The replicas in a group's device process."""
        return list(self._loaded[group])

    def of(self, model: Deployment) -> list[Replica]:
        """The replicas of one model."""
        return [replica for replica in self.all() if replica.model.number == model.number]

    def report(self, model: Deployment) -> ModelReport:
        """The report for the operator on a model that is loaded."""
        replicas = self.of(model)
        return ModelReport(
            model,
            replicas[0].signature,
            [replica.device for replica in replicas],
            max(replica.load.load_s for replica in replicas),
            max(replica.load.warm_up_s for replica in replicas),
            min(replica.load.max_batch_rows for replica in replicas),
        )

    def all(self) -> list[Replica]:
        """All loaded replicas."""
        return [replica for replicas in self._loaded.values() for replica in replicas]


def with_isolation(load: Loaded, isolation: RowIsolation) -> Loaded:
    """Return a report of a load with another finding on whether rows may share batches."""
    return msgspec.structs.replace(load, signature=dataclasses.replace(load.signature, isolation=isolation))


def _callers_view(signature: Signature) -> Signature:
    """The signature as callers see it: replicas may differ in what only the device process uses for batching."""
    if signature.script is None:
        return signature
    script = msgspec.structs.replace(signature.script, batching="none", batching_reason="")
    return dataclasses.replace(signature, script=script)
