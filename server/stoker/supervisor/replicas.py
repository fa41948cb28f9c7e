"""The replicas that device processes have loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.row_isolation import RowIsolation
from stoker.supervisor.groups import Group
from stoker.supervisor.reports import ModelReport
from stoker.tensors import Signature


@dataclass(frozen=True, slots=True)
class Replica:
    """A model that one device process has loaded.

    Attributes:
        generation: A number that is unique to this load.
        memory_bytes: Private memory of its process that the load has taken.
    """

    model: Deployment
    signature: Signature
    device: str
    generation: int
    load_s: float
    warm_up_s: float
    max_batch_rows: int
    memory_bytes: int = 0


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

    def add(
        self,
        group: Group,
        number: int,
        signature: Signature,
        device: str,
        *,
        load_s: float,
        warm_up_s: float,
        max_batch_rows: int,
        memory_bytes: int = 0,
    ) -> Replica:
        """Record that a group's device process has loaded the model with this number.

        Raises:
            LoadFailed: Its tensors differ from those of the replicas that are loaded already.
        """
        model = group.model(number)
        for other in self.of(model):
            if _callers_view(other.signature) != _callers_view(signature):
                raise LoadFailed(
                    f"the replicas of {model.name} differ: {signature} on {device}, but "
                    f"{other.signature} on {other.device}; if the model has changed, start the server anew"
                )
        self._generation += 1
        replica = Replica(
            model, signature, device, self._generation, load_s, warm_up_s, max_batch_rows, memory_bytes
        )
        self._loaded[group].append(replica)
        return replica

    def change_isolation(self, model: Deployment, isolation: RowIsolation) -> None:
        """Record a new finding on whether a model's rows may share batches."""
        self._isolations[model.number] = isolation
        for group, loaded in self._loaded.items():
            self._loaded[group] = [
                dataclasses.replace(
                    replica, signature=dataclasses.replace(replica.signature, isolation=isolation)
                )
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
            max(replica.load_s for replica in replicas),
            max(replica.warm_up_s for replica in replicas),
            min(replica.max_batch_rows for replica in replicas),
        )

    def all(self) -> list[Replica]:
        """All loaded replicas."""
        return [replica for replicas in self._loaded.values() for replica in replicas]


def _callers_view(signature: Signature) -> Signature:
    """The signature as callers see it: replicas may differ in what only the device process uses for batching."""
    if signature.script is None:
        return signature
    script = dataclasses.replace(signature.script, batching="none", batching_reason="")
    return dataclasses.replace(signature, script=script)
