"""A supervisor whose processes are puppets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from tests.puppets import ROWS

from stoker.control.channel import Codec
from stoker.control.device_messages import DeviceChosen, FromDevice, Loaded, StartDevice
from stoker.control.frontend_messages import Attached, AttachReplica, FromFrontend, Listening, Started
from stoker.deployment import Deployment
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import Totals
from stoker.supervisor.reports import StartUp
from stoker.supervisor.supervisor import Supervisor
from stoker.tensors import Signature, TensorSpec

Received = TypeVar("Received")

WIDER = Signature((TensorSpec("x", "float32", (3,)),), ROWS.outputs)


def model(name: str, *devices: str, framework: str = "onnx", slot: int = 0) -> Deployment:
    """A model with a replica on each of these devices; nobody loads it."""
    return Deployment(
        name,
        1,
        framework,
        Path(name),
        Path(),
        max_batch_rows=4,
        max_body_bytes=64,
        number=slot,
        slot=slot,
        devices=devices,
        threads=2,
        timeout_ms=1000,
    )


def in_time(model: Deployment, load_timeout_s: float) -> Deployment:
    """The model with so much time to be loaded."""
    return replace(model, load_timeout_s=load_timeout_s)


@dataclass(eq=False)
class PuppetChild:
    """A process that says what the test tells it to say, and keeps what it is sent."""

    module: str
    codec: Codec[Any, Any]
    on_message: Callable[[Any, Any], None]
    on_exit: Callable[[Any], None]
    sent: list[Any] = field(default_factory=list)
    killed: bool = False
    hung: bool = False
    dumped: bool = False
    is_blameless: bool = True
    ended: tuple[float, bool] | None = None
    lived_s: float = 1.0

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        self.codec.encode(message)
        self.sent.append(message)

    @property
    def process(self) -> SimpleNamespace:
        async def wait() -> int:
            return 0

        return SimpleNamespace(wait=wait, pid=-1)

    def say(self, message: FromDevice | FromFrontend) -> None:
        self.on_message(self, message)

    def load(self, signature: Signature = ROWS) -> None:
        """Be a device process that has loaded all its models."""
        (start,) = self.received(StartDevice)
        self.say(DeviceChosen("cpu", "a CPU", "as asked for"))
        for place in start.models:
            self.say(Loaded(place.number, signature, load_s=0.5, warm_up_s=0.25, max_batch_rows=8))

    def confirm(self) -> None:
        """Be a frontend that listens, and confirms what it was told to attach."""
        self.say(Listening())
        for attach in self.received(AttachReplica):
            self.say(Attached(attach.generation))

    def received(self, kind: type[Received]) -> list[Received]:
        return [message for message in self.sent if isinstance(message, kind)]

    def die(self) -> None:
        self.on_exit(self)

    def kill(self) -> None:
        self.killed = True

    def dump_stacks(self) -> None:
        self.dumped = True

    def dump_stacks_and_kill(self) -> None:
        self.hung = True

    def describe_exit(self) -> str:
        return "was ended by SIGKILL"

    async def end(self, timeout_s: float, *, busy: bool = False) -> None:
        self.ended = (timeout_s, busy)


@dataclass
class System:
    """Starts puppet processes.

    Attributes:
        refusals: How many of the next starts fail.
        gate: Starts wait for this, if it is set.
    """

    refusals: int = 0
    gate: asyncio.Event | None = None


@dataclass
class Stage:
    """A supervisor among puppets.

    Attributes:
        children: Every process that it has started.
        ready: What it has announced.
        system: What starts them.
        memory: The metrics of all processes.
    """

    supervisor: Supervisor
    children: list[PuppetChild]
    ready: list[StartUp]
    system: System
    memory: MetricMemory

    @property
    def devices(self) -> list[PuppetChild]:
        return [child for child in self.children if child.module == "stoker.device.process"]

    @property
    def frontends(self) -> list[PuppetChild]:
        return [child for child in self.children if child.module == "stoker.gateway.frontend"]

    @property
    def totals(self) -> Totals:
        return self.memory.totals()

    @property
    def ready_replicas(self) -> int:
        return self.totals.model(0).ready_replicas

    async def start(self) -> None:
        """Let every process come up."""
        for frontend in self.frontends:
            frontend.say(Started())
        for device in self.devices:
            device.load()
        for frontend in self.frontends:
            frontend.confirm()
        await until(lambda: self.ready)


Play = Callable[..., None]


async def until(look: Callable[[], object]) -> None:
    """Let the loop turn until there is something to see."""
    for _ in range(1000):
        if look():
            return
        await asyncio.sleep(0)
    raise AssertionError("a thousand turns of the loop were not enough")
