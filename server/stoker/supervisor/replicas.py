"""The replicas that the device processes of a server have loaded at this moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.errors import LoadFailed
from stoker.models.deployed import Deployed
from stoker.supervisor.groups import Group
from stoker.supervisor.start_up import ModelReport
from stoker.tensors import Signature
from stoker.verdict import Verdict

__all__ = ["Replica", "Replicas"]


@dataclass(frozen=True, slots=True)
class Replica:
    """A model that a device process has loaded.

    Attributes:
        model: The model.
        signature: What it takes and gives.
        device: Where it runs.
        generation: A number that no other load of any model has.
        load_s: Seconds until it was loaded.
        warm_up_s: Seconds that its first batches took.
    """

    model: Deployed
    signature: Signature
    device: str
    generation: int
    load_s: float
    warm_up_s: float


class Replicas:
    """Which replicas are loaded, over all restarts of their device processes."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._loaded: dict[Group, list[Replica]] = {group: [] for group in groups}
        self._generation = 0

    def join(self, group: Group) -> None:
        """Record a further device process."""
        self._loaded[group] = []

    def leave(self, group: Group) -> None:
        """Record that a device process will not come back."""
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
    ) -> Replica:
        """Record that the device process of a group has loaded the model with this number.

        Raises:
            LoadFailed: Callers would see another model than in the replicas that are loaded already.
        """
        model = group.model(number)
        for other in self.of(model):
            if _callers_view(other.signature) != _callers_view(signature):
                raise LoadFailed(
                    f"the replicas of {model.servable.name} differ: {signature} on {device}, but "
                    f"{other.signature} on {other.device}; if the model has changed, start the server anew"
                )
        self._generation += 1
        replica = Replica(model, signature, device, self._generation, load_s, warm_up_s)
        self._loaded[group].append(replica)
        return replica

    def change_verdict(self, model: Deployed, verdict: Verdict) -> None:
        """Record that something else is known of whether a model's rows may share batches."""
        for group, loaded in self._loaded.items():
            self._loaded[group] = [
                dataclasses.replace(
                    replica, signature=dataclasses.replace(replica.signature, verdict=verdict)
                )
                if replica.model.number == model.number
                else replica
                for replica in loaded
            ]

    def remove(self, group: Group) -> list[Replica]:
        """Record that the device process of a group has ended; returns what it had loaded."""
        lost, self._loaded[group] = self._loaded[group], []
        return lost

    def unload(self, group: Group, model: Deployed) -> None:
        """Record that the device process of a group does not serve a model any more."""
        self._loaded[group] = [
            replica for replica in self._loaded[group] if replica.model.number != model.number
        ]

    def is_complete(self, model: Deployed) -> bool:
        """Whether every replica of a model is loaded."""
        return len(self.of(model)) == len(model.placement.devices)

    def in_group(self, group: Group) -> list[Replica]:
        """Those in the device process of a group."""
        return list(self._loaded[group])

    def of(self, model: Deployed) -> list[Replica]:
        """Those of one model."""
        return [replica for replica in self.all() if replica.model.number == model.number]

    def report(self, model: Deployed) -> ModelReport:
        """What the operator is told of a model that has replicas."""
        replicas = self.of(model)
        return ModelReport(
            model,
            replicas[0].signature,
            [replica.device for replica in replicas],
            max(replica.load_s for replica in replicas),
            max(replica.warm_up_s for replica in replicas),
        )

    def all(self) -> list[Replica]:
        """All that are loaded."""
        return [replica for replicas in self._loaded.values() for replica in replicas]


def _callers_view(signature: Signature) -> Signature:
    """The signature without what only the device process acts on: replicas may differ in how they batch."""
    if signature.script is None:
        return signature
    script = dataclasses.replace(signature.script, batching="none", batching_reason="")
    return dataclasses.replace(signature, script=script)
