"""Reports on a server that has started: its devices, its models, and broken versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from stoker.deployment import Deployment
from stoker.errors import OperatorError
from stoker.system.wording import format_count
from stoker.tensors import Signature


class ModelReport(Struct, frozen=True):
    """A model that has been loaded, with all its replicas.

    Attributes:
        load_s, warm_up_s: Seconds of the slowest replica.
        max_batch_rows: Most rows in one batch, on the replica that takes the fewest.
    """

    deployed: Deployment
    signature: Signature
    devices: list[str]
    load_s: float
    warm_up_s: float
    max_batch_rows: int


class DeviceReport(Struct, frozen=True):
    """The device that a process chose, and why."""

    device: str
    description: str
    reason: str


class StartUp(Struct, frozen=True):
    """The whole server.

    Attributes:
        broken: By name and version why other versions of the settings are not served.
        on_demand: Names of models that are loaded when they are asked for.
        only: The model that is meant where a path names none; None if the settings have several.
    """

    devices: list[DeviceReport]
    models: list[ModelReport]
    elapsed_s: float
    broken: Mapping[tuple[str, int], OperatorError] = field(default_factory=dict)
    pipelines: Mapping[str, Signature] = field(default_factory=dict)
    on_demand: Sequence[str] = ()
    only: str | None = None

    @property
    def served(self) -> str:
        """The served models in words: the names of loaded ones, and the number of others."""
        names = [*dict.fromkeys(model.deployed.name for model in self.models)]
        if self.on_demand:
            names.append(self.on_demand_text)
        return ", ".join(names) or "nothing yet"

    @property
    def on_demand_text(self) -> str:
        """How many models are loaded when they are asked for."""
        return f"{format_count(len(self.on_demand), 'model')} on demand"
