"""Messages between the supervisor and a device process; see `stoker.control.channel` for the encoding.

Models are identified by numbers that the supervisor assigns for its lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec import Struct

from stoker.control.channel import Codec
from stoker.deployment import Deployment
from stoker.keys.keyring import Keys
from stoker.row_isolation import RowIsolation
from stoker.settings.traffic import Endpoint
from stoker.system.logs import LogSettings
from stoker.tensors import Signature


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a device process reaches its own server, and which keys that takes.

    Attributes:
        tls: Whether it speaks TLS.
        auth: Whether callers need a key.
        keys: The keys that the operator has given for all models; None without any.
        mounted_keys: The folder of such keys that others manage; None without one.
        problem: Why it takes no requests of its models; empty if it does.
    """

    host: str
    port: int
    tls: bool
    auth: bool
    keys_dir: Path
    keys: Keys | None = field(default=None, repr=False)
    mounted_keys: Path | None = None
    endpoint: Endpoint | None = None
    problem: str = ""


class StartDevice(Struct, frozen=True):
    """The supervisor's first message, sent once: what to load. Its descriptors are the memories of metrics and turns.

    Attributes:
        device: Where the models run: `cpu`, `cuda:N`, or `auto`.
        yields: Whether the process was started with a lower priority than the others, until its models are loaded.
        niceness: The niceness to return to then; see `stoker.system.processes`.
        device_batches: Number of batches that compute on the device concurrently; None to measure where useful.
        packs: Whether more models may follow by `LoadModel`.
        server: Where its models may call others; None for models that do not.
    """

    name: str
    page: int
    device: str
    yields: bool
    niceness: int | None
    models: tuple[Deployment, ...]
    device_batches: int | None
    log: LogSettings
    packs: bool = False
    server: ServerAddress | None = None


class LoadModel(Struct, frozen=True):
    """The supervisor requests another model to be loaded beside those that serve; answered as for `StartDevice`."""

    model: Deployment


class AddLane(Struct, frozen=True):
    """The supervisor connects a loaded model to a frontend. The descriptors are an arena and a doorbell.

    Attributes:
        signature: The layout of the arena's rows.
    """

    number: int
    signature: Signature
    capacity_rows: int


class UnloadModel(Struct, frozen=True):
    """The supervisor requests a model to be unloaded that no frontend uses any more; answered by `Unloaded`."""

    number: int


class StopBatching(Struct, frozen=True):
    """The supervisor requests that rows of a model run alone: rows affected each other on another replica."""

    number: int


ToDevice = StartDevice | LoadModel | AddLane | StopBatching | UnloadModel | LogSettings
"""Messages from the supervisor to a device process."""


class DeviceChosen(Struct, frozen=True):
    """A device process reports which device it uses, before it loads models.

    Attributes:
        device: The device, in the notation of `stoker.deployment.Device`.
    """

    device: str
    description: str
    reason: str


class Loaded(Struct, frozen=True):
    """A device process has loaded a model, and accepts `AddLane` for it.

    Attributes:
        max_batch_rows: Most rows in one batch; less than was set where the load chose fewer or memory is short.
        memory_bytes: Private memory of the process that the load has taken, its imports not included.
    """

    number: int
    signature: Signature
    load_s: float
    warm_up_s: float
    max_batch_rows: int
    memory_bytes: int = 0


class Failed(Struct, frozen=True):
    """A device process cannot load a model, or cannot use its device; it ends if no model is left.

    Attributes:
        exit_code: The exit code of the process, or of the whole server.
        number: The model's number; None if the failure is not of a single model.
    """

    message: str
    code: str
    exit_code: int
    number: int | None = None


class Unloaded(Struct, frozen=True):
    """A device process has unloaded a model, and released everything it held."""

    number: int


class BatchingStopped(Struct, frozen=True):
    """While serving, a device process has found that a model's rows must not share batches; it runs each alone."""

    number: int
    isolation: RowIsolation


FromDevice = DeviceChosen | Loaded | Failed | Unloaded | BatchingStopped
"""Messages from a device process to the supervisor."""

SUPERVISOR_END: Final[Codec[ToDevice, FromDevice]] = Codec(ToDevice, FromDevice)
DEVICE_END: Final[Codec[FromDevice, ToDevice]] = Codec(FromDevice, ToDevice)
