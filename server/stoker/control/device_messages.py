"""What the supervisor and a device process tell each other; see `stoker.control.message_codec` for how.

Models are named by the numbers that the supervisor has for them, for as long as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.control.message_codec import Codec
from stoker.servable import Servable
from stoker.system.log_settings import LogSettings
from stoker.tensors import Signature
from stoker.verdict import Verdict

__all__ = [
    "DEVICE_END",
    "SUPERVISOR_END",
    "AddLane",
    "BatchingStopped",
    "DeviceChosen",
    "Failed",
    "FromDevice",
    "LoadModel",
    "Loaded",
    "StartDevice",
    "StopBatching",
    "ToDevice",
    "UnloadModel",
    "Unloaded",
]


@dataclass(frozen=True, slots=True)
class LoadModel:
    """One model of `StartDevice`.

    Attributes:
        number: Its number.
        servable: What to load.
        max_delay_ms: How long its rows may wait for company.
        slot: Its slot in the metrics.
        threads: Threads that it may use for one CPU operation.
        audit_rate: How many of all its batches are audited, at most 1; 0 for none.
    """

    number: int
    servable: Servable
    max_delay_ms: float
    slot: int
    threads: int
    audit_rate: float


@dataclass(frozen=True, slots=True)
class StartDevice:
    """The supervisor says, first and once, what to load. Its descriptors are the memory of the metrics, and of turns.

    Attributes:
        name: What the process is called in the log.
        page: The process's page of the metrics.
        device: Where the models run: `cpu`, `cuda:N`, or `auto`.
        yields: Whether the process was started behind all others, to which it is equal once all is loaded.
        niceness: The niceness to return to then; see `stoker.system.yielding`.
        models: The models, in the order in which they are loaded.
        device_batches: How many batches compute on the device at once; None to find out where it matters.
        log: What its log has.
    """

    name: str
    page: int
    device: str
    yields: bool
    niceness: int | None
    models: tuple[LoadModel, ...]
    device_batches: int | None
    log: LogSettings


@dataclass(frozen=True, slots=True)
class AddLane:
    """The supervisor joins a loaded model with a frontend. Its descriptors are an arena and a doorbell.

    Attributes:
        number: The model.
        signature: How the rows of the arena are laid out.
        capacity_rows: How many there are.
    """

    number: int
    signature: Signature
    capacity_rows: int


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """The supervisor wants a model gone that no frontend uses any more; answered by `Unloaded`."""

    number: int


@dataclass(frozen=True, slots=True)
class StopBatching:
    """The supervisor wants each row of a model to run alone: another replica's was seen to change another one's."""

    number: int


ToDevice = StartDevice | AddLane | StopBatching | UnloadModel | LogSettings
"""What the supervisor tells a device process."""


@dataclass(frozen=True, slots=True)
class DeviceChosen:
    """A device process says which device it uses, before it loads.

    Attributes:
        device: The device, as `stoker.servable.Device` writes it.
        description: A name to show.
        reason: Why it is this one.
    """

    device: str
    description: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A device process has loaded a model, and takes lanes for it.

    Attributes:
        number: The model.
        signature: What it takes and gives.
        load_s, warm_up_s: Seconds that it took.
    """

    number: int
    signature: Signature
    load_s: float
    warm_up_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A device process cannot load a model, or not use its device; it ends if it has no model left.

    Attributes:
        message: The text of the error.
        code: Its code, as callers see it.
        exit_code: What the process, or the whole server, exits with.
        number: The model; None if it is none of a single one.
    """

    message: str
    code: str
    exit_code: int
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A device process has nothing left of a model."""

    number: int


@dataclass(frozen=True, slots=True)
class BatchingStopped:
    """A device process has found out while it serves that a model's rows must not share batches, and runs each alone.

    Attributes:
        number: The model.
        verdict: What is known of it now.
    """

    number: int
    verdict: Verdict


FromDevice = DeviceChosen | Loaded | Failed | Unloaded | BatchingStopped
"""What a device process tells the supervisor."""

SUPERVISOR_END: Final[Codec[ToDevice, FromDevice]] = Codec(ToDevice, FromDevice)
DEVICE_END: Final[Codec[FromDevice, ToDevice]] = Codec(FromDevice, ToDevice)
