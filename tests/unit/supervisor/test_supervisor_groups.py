"""Which models share a device process, and what the supervisor does when one of several replicas comes or goes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from tests.descriptors import room_for_descriptors
from tests.puppets import BODIES, ROWS

from stoker.control.channel import Codec
from stoker.control.device_messages import (
    AddLane,
    BatchingStopped,
    DeviceChosen,
    Failed,
    FromDevice,
    Loaded,
    StartDevice,
    StopBatching,
    Unloaded,
    UnloadModel,
)
from stoker.control.frontend_messages import (
    AskIndex,
    AskUnload,
    Attached,
    AttachFailed,
    AttachReplica,
    DetachReplica,
    FromFrontend,
    IsolationChanged,
    Listen,
    Listening,
    Outgrown,
    Refusal,
    Reply,
    Retire,
    Retired,
    Route,
    Serve,
    Started,
    StartFrontend,
)
from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, OperatorError
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import Totals
from stoker.settings.choices import Acceleration
from stoker.settings.names import VersionStatus
from stoker.settings.server import ServerSettings
from stoker.supervisor import device_processes, frontend_processes
from stoker.supervisor import fleet as fleet_module
from stoker.supervisor import supervisor as supervisor_module
from stoker.supervisor.catalogue import StartUp
from stoker.supervisor.children import Backoff
from stoker.supervisor.device_processes import Replicas, group
from stoker.supervisor.supervisor import Supervisor
from stoker.tensors import RowIsolation, ScriptForm, Signature, TensorSpec

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


def _in_time(model: Deployment, load_timeout_s: float) -> Deployment:
    """The model with so much time to be loaded."""
    return replace(model, load_timeout_s=load_timeout_s)


def formed(*models: Deployment) -> list[tuple[str, str]]:
    """The groups as device and description."""
    numbered = [replace(deployed, slot=slot, number=slot) for slot, deployed in enumerate(models)]
    return [(group.device, str(group)) for group in group(numbered)]


def test_models_share_the_processes_of_their_devices_and_scripts_do_not() -> None:
    """ONNX models and SavedModels of one device are together; each entry script and each pickle is alone."""
    assert formed(
        model("digits", "cpu"),
        model("first", "cpu", framework="script"),
        model("letters", "cpu", framework="tensorflow"),
        model("second", "cpu", framework="script"),
        model("homes", "cpu", framework="sklearn"),
        model("faces", "cuda:0"),
    ) == [*(("cpu", names) for names in ("digits, letters", "first", "second", "homes")), ("cuda:0", "faces")]


@pytest.mark.parametrize(
    ("acceleration", "alone"),
    [
        (Acceleration(xla=True), False),
        (Acceleration(memory_mb=9), True),
        (Acceleration(precision="fp32"), True),
    ],
)
def test_a_saved_model_with_settings_of_its_process_is_alone(acceleration: Acceleration, alone: bool) -> None:
    """TensorFlow has one memory limit and one precision in a process; ONNX Runtime has them in a session."""
    models = [model("first"), model("second", "cuda:0"), model("third", "cuda:0", framework="tensorflow")]
    groups = formed(*(replace(each, acceleration=acceleration) for each in models))
    assert groups == ([("cuda:0", "second"), ("cuda:0", "third")] if alone else [("cuda:0", "second, third")])


def test_the_replicas_of_a_model_are_in_different_processes() -> None:
    """The first ones of a device are together, then the second ones; a script's are its own."""
    assert formed(
        model("digits", "cpu", "cpu"),
        model("letters", "cpu"),
        model("faces", "cuda:0", "cpu", "cpu"),
        model("script", "cpu", "cpu", framework="script"),
    ) == [
        ("cpu", "digits (replica 1 of 2), letters, faces (replica 2 of 3)"),
        ("cpu", "digits (replica 2 of 2), faces (replica 3 of 3)"),
        ("cuda:0", "faces (replica 1 of 3)"),
        ("cpu", "script (replica 1 of 2)"),
        ("cpu", "script (replica 2 of 2)"),
    ]


def test_a_process_is_called_by_what_tells_it_from_others() -> None:
    """An only model by its name, with the number of its replica where there are several; else the device."""
    models = [model("a", "cpu"), model("b", "cpu"), model("odd", "cpu", "cpu", framework="script")]
    numbered = [replace(deployed, slot=slot, number=slot) for slot, deployed in enumerate(models)]
    assert [formed.short_name for formed in group(numbered)] == [
        "cpu",
        "odd (replica 1 of 2)",
        "odd (replica 2 of 2)",
    ]
    assert [formed.short_name for formed in group(numbered[:1])] == ["a"]


def test_every_process_has_a_page_of_the_metrics_and_there_are_so_many() -> None:
    """Pages are counted up; more processes than pages are refused before any of them starts."""
    most = SUPERVISOR_PAGE - FIRST_DEVICE_PAGE
    pages = [group.page for group in group([model("digits", *["cuda:0"] * most)])]
    assert pages == list(range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE))
    with pytest.raises(
        InvalidSettings, match=f"at most {most} device processes can run, .* ask for {most + 1}"
    ):
        group([model("digits", *["cuda:0"] * (most + 1))])


def test_replicas_that_differ_for_callers_are_refused() -> None:
    """Another shape is an error that shows both; once no other replica is loaded, a new signature is fine."""
    digits = model("digits", "cpu", "cuda:0")
    first, second = groups = group([digits])
    replicas = Replicas(groups)

    def add(group: Any, signature: Signature, device: str) -> int:
        return replicas.add(group, digits.number, signature, device, load_s=1, warm_up_s=2).generation

    add(first, ROWS, "cpu")
    with pytest.raises(LoadFailed) as refused:
        add(second, WIDER, "cuda:0")
    assert "the replicas of digits differ: x float32[n,3]" in str(refused.value)
    assert "on cuda:0, but x float32[n,2] -> y float32[n,2] on cpu" in str(refused.value)
    assert [lost.device for lost in replicas.remove(first)] == ["cpu"]
    assert add(second, WIDER, "cuda:0") == 2
    assert add(first, WIDER, "cpu") == 3
    assert replicas.is_complete(digits)
    assert [replica.generation for replica in replicas.of(digits)] == [3, 2]


def test_replicas_may_batch_differently() -> None:
    """How a script is batched is decided in each process by what it measures, and no caller sees it."""
    script = model("script", "cpu", "cpu", framework="script")
    groups = group([script])
    replicas = Replicas(groups)
    for group_, form in zip(
        groups, [ScriptForm(batching="merge", batching_reason="agrees"), ScriptForm()], strict=True
    ):
        replicas.add(group_, 0, replace(BODIES, script=form), "cpu", load_s=0, warm_up_s=0)
    assert replicas.is_complete(script)


def test_replicas_need_not_agree_on_how_their_rows_were_tried() -> None:
    """There is time for more companions in one load than in another, and no caller sees it."""
    digits = model("digits", "cpu", "cpu")
    groups = group([digits])
    replicas = Replicas(groups)
    for group_, companions in zip(groups, (20, 30), strict=True):
        tried = replace(ROWS, isolation=RowIsolation(True, "tested", f"{companions} companions", companions))
        replicas.add(group_, 0, tried, "cpu", load_s=0, warm_up_s=0)
    assert replicas.is_complete(digits)


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
            self.say(Loaded(place.number, signature, load_s=0.5, warm_up_s=0.25))

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

    def dump_stacks_and_kill(self) -> None:
        self.hung = True

    def describe_exit(self) -> str:
        return "was ended by SIGKILL"

    async def end(self, timeout_s: float, *, busy: bool = False) -> None:
        self.ended = (timeout_s, busy)


@dataclass
class System:
    """What starts processes.

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
    """

    supervisor: Supervisor
    children: list[PuppetChild]
    ready: list[StartUp]
    system: System

    @property
    def devices(self) -> list[PuppetChild]:
        return [child for child in self.children if child.module == "stoker.device.process"]

    @property
    def frontends(self) -> list[PuppetChild]:
        return [child for child in self.children if child.module == "stoker.gateway.frontend"]

    @property
    def totals(self) -> Totals:
        return MetricMemory(self.supervisor._metrics_fd).totals()

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


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Run a supervisor of these models with two frontends through a scene, then stop it."""
    children: list[PuppetChild] = []
    system = System()

    async def start(
        _: str, module: str, codec: Codec[Any, Any], on_message: Any, on_exit: Any, **__: Any
    ) -> PuppetChild:
        if system.gate is not None:
            await system.gate.wait()
        if system.refusals:
            system.refusals -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        children.append(PuppetChild(module, codec, on_message, on_exit))
        return children[-1]

    class NoGpu:
        def read(self) -> list[Any]:
            raise OSError

    for module in (device_processes, frontend_processes):
        monkeypatch.setattr(module, "Child", SimpleNamespace(start=start))
    monkeypatch.setattr(supervisor_module, "GpuReader", NoGpu)
    monkeypatch.setattr(device_processes, "yield_cores", lambda _: 0)
    monkeypatch.setattr(Backoff, "_FIRST_S", 0.0)

    def run(models: Sequence[Deployment], scene: Callable[[Stage], Awaitable[None]], **settings: Any) -> None:
        ready: list[StartUp] = []
        sockets = [socket.socket(), socket.socket()]

        async def perform() -> None:
            given = ServerSettings(drain_grace_s=0, frontends=len(sockets), **settings)
            # Of the stock only that it takes back what was taken from it.
            stock: Any = SimpleNamespace(put_back=lambda _: None)
            supervisor = Supervisor(given, models, tmp_path, sockets, ready.append, stock)
            running = asyncio.ensure_future(supervisor.run())
            processes = supervisor.fleet.devices.processes
            await until(lambda: processes and len(children) >= 2 + len(processes))
            await scene(Stage(supervisor, children, ready, system))
            supervisor._background.stop()
            await running

        asyncio.run(perform())

    return run


async def until(look: Callable[[], object]) -> None:
    """Let the loop turn until there is something to see."""
    for _ in range(1000):
        if look():
            return
        await asyncio.sleep(0)
    raise AssertionError("a thousand turns of the loop were not enough")


def test_start_up_waits_for_all_replicas(play: Play) -> None:
    """Each replica is told its device, page and threads; the server is ready when every frontend has all of them."""

    async def scene(stage: Stage) -> None:
        starts = [device.received(StartDevice)[0] for device in stage.devices]
        assert [(start.device, start.page) for start in starts] == [("cuda:0", 64), ("cuda:1", 65)]
        assert [start.models[0].threads for start in starts] == [2, 2]
        first, second = stage.frontends
        for frontend in (first, second):
            frontend.say(Started())
        stage.devices[0].load()
        first.confirm()
        second.confirm()
        assert (stage.ready, stage.ready_replicas) == ([], 1)
        stage.devices[1].load()
        first.confirm()
        assert (stage.ready, stage.ready_replicas) == ([], 2)
        second.confirm()
        await until(lambda: stage.ready)
        (start_up,) = stage.ready
        (report,) = start_up.models
        assert (report.deployed.name, report.signature, len(report.devices)) == ("digits", ROWS, 2)
        assert len(start_up.devices) == 2

    play([model("digits", "cuda:0", "cuda:1")], scene)


def test_a_replica_that_ends_is_detached_alone_and_comes_back(play: Play) -> None:
    """Frontends are told of its generation and no other; its successor gets arenas and a generation of its own."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        assert len(stage.ready) == 1
        (generation, other) = (message.generation for message in stage.frontends[0].received(AttachReplica))
        stage.devices[0].die()
        for frontend in stage.frontends:
            assert frontend.received(DetachReplica) == [DetachReplica(generation)]
        assert stage.ready_replicas == 1
        await until(lambda: len(stage.devices) == 3)
        stage.devices[2].load()
        assert stage.ready_replicas == 2
        for frontend in stage.frontends:
            *_, attached = frontend.received(AttachReplica)
            assert attached.generation not in (generation, other)
        assert len(stage.devices[2].received(AddLane)) == 2
        assert len(stage.devices[1].received(AddLane)) == 2, "the other one is left alone"
        assert stage.totals.restarts() == {"device": 1, "frontend": 0}

    play([model("digits", "cpu", "cpu")], scene)


def test_what_one_replica_finds_out_while_it_serves_holds_for_all(play: Play) -> None:
    """All replicas stop batching, frontends say why, and a process that is started again is told before its lanes."""
    tried = replace(ROWS, isolation=RowIsolation(True, "tested", "tested with companions", 9))
    found = RowIsolation(False, "watched", "an audit has failed", 9)

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        for device in stage.devices:
            device.load(tried)
        for frontend in stage.frontends:
            frontend.confirm()
        await until(lambda: stage.ready)
        stage.devices[1].say(BatchingStopped(0, found))
        for device in stage.devices[:2]:
            assert device.received(StopBatching) == [StopBatching(0)]
        assert not stage.devices[2].received(StopBatching), "the other model is another one"
        for frontend in stage.frontends:
            assert frontend.received(IsolationChanged) == [IsolationChanged(0, found)]
        known = stage.supervisor.fleet.devices.replicas.all()
        assert [replica.signature.isolation for replica in known] == [found, found, tried.isolation]
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 4)
        started = stage.devices[3]
        started.load(tried)
        kinds = [type(message) for message in started.sent]
        assert kinds == [StartDevice, StopBatching, AddLane, AddLane]
        for frontend in stage.frontends:
            *_, attached = frontend.received(AttachReplica)
            assert attached.signature.isolation == found
        stage.devices[1].say(BatchingStopped(7, found))
        assert [len(frontend.received(IsolationChanged)) for frontend in stage.frontends] == [1, 1]

    play([model("digits", "cpu", "cuda:0"), model("letters", "cuda:1", slot=1)], scene)


def test_a_frontend_that_comes_back_gets_every_living_replica(play: Play) -> None:
    """One that starts while a replica is down is attached to those that are there, and later to the other one."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        stage.devices[1].die()
        stage.frontends[0].die()
        await until(lambda: len(stage.children) == 6)
        successor = stage.frontends[2]
        successor.say(Started())
        assert len(successor.received(AttachReplica)) == 1
        stage.devices[2].load()
        assert len(successor.received(AttachReplica)) == 2

    play([model("digits", "cpu", "cpu")], scene)


def test_a_replica_that_differs_stops_the_start(play: Play) -> None:
    """Nothing is announced, the process is killed, and the operator reads why."""

    async def scene(stage: Stage) -> None:
        stage.devices[0].load(ROWS)
        stage.devices[1].load(WIDER)
        assert stage.devices[1].killed
        stage.devices[1].die()
        assert stage.ready == []

    with pytest.raises(OperatorError, match="the replicas of digits differ"):
        play([model("digits", "cpu", "cpu")], scene)


def test_a_restarted_replica_that_differs_is_not_used(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """The file has changed under a running server: the others go on, the log says what to do."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 3)
        attached = len(stage.frontends[0].received(AttachReplica))
        stage.devices[2].load(WIDER)
        assert stage.devices[2].killed
        assert len(stage.frontends[0].received(AttachReplica)) == attached
        stage.devices[2].die()
        assert stage.ready_replicas == 1
        await until(lambda: len(stage.devices) == 4)

    play([model("digits", "cpu", "cpu")], scene)
    assert "if the model has changed, start the server anew" in caplog.text
    assert "the device process of digits (replica 1 of 2)" in caplog.text


def test_a_model_that_is_added_has_a_process_of_its_own(play: Play) -> None:
    """Frontends have it before it is loaded, and it counts as added when all of them are joined with it."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        fleet, letters = stage.supervisor.fleet, model("letters", "cpu", slot=7)
        adding = asyncio.ensure_future(fleet.add(letters))
        await until(lambda: len(stage.devices) == 2)
        (start,) = stage.devices[1].received(StartDevice)
        assert (start.page, start.yields, start.models[0].slot) == (65, True, 7)
        for frontend in stage.frontends:
            assert [message.service.name for message in frontend.received(Serve)] == ["letters"]
        stage.devices[1].load()
        stage.frontends[0].confirm()
        await asyncio.sleep(0)
        assert not adding.done()
        stage.frontends[1].confirm()
        await adding

        removing = asyncio.ensure_future(fleet.remove(letters))
        await until(lambda: stage.frontends[1].received(Retire))
        stage.frontends[0].say(Retired(7))
        await asyncio.sleep(0)
        assert len(fleet.devices.processes) == 2, "the other frontend may still wait for answers"
        stage.frontends[1].die()
        await removing
        assert [str(process.group) for process in fleet.devices.processes] == ["digits"]

    play([model("digits", "cpu")], scene)


def test_a_frontend_that_ends_while_a_model_is_added_has_a_successor_with_it(play: Play) -> None:
    """It counts as added when the successor can score with it too: names will mean it there as well."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        fleet = stage.supervisor.fleet
        adding = asyncio.ensure_future(fleet.add(model("letters", "cpu", slot=7)))
        await until(lambda: len(stage.devices) == 2)
        stage.frontends[0].die()
        await until(lambda: len(stage.frontends) == 3)
        successor = stage.frontends[2]
        (start,) = successor.received(StartFrontend)
        assert [service.name for service in start.services] == ["digits", "letters"]
        successor.say(Started())
        stage.devices[1].load()
        assert [message.number for message in successor.received(AttachReplica)] == [0, 7]
        stage.frontends[1].confirm()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not adding.done()
        successor.confirm()
        await adding

    play([model("digits", "cpu")], scene)


def test_a_model_leaves_a_process_that_others_use(play: Play) -> None:
    """Its process is told to unload it, keeps the others, and does not load it again when it is restarted."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        fleet = stage.supervisor.fleet
        removing = asyncio.ensure_future(fleet.remove(fleet.devices.processes[0].group.model(0)))
        await until(lambda: stage.frontends[1].received(Retire))
        for frontend in stage.frontends:
            frontend.say(Retired(0))
        await until(lambda: stage.devices[0].received(UnloadModel))
        assert not removing.done()
        stage.devices[0].say(Unloaded(0))
        await removing
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2)
        (start,) = stage.devices[1].received(StartDevice)
        assert [place.name for place in start.models] == ["letters"]

    play([model("digits", "cpu"), model("letters", "cpu", slot=1)], scene)


def test_what_cannot_be_added_leaves_nothing(play: Play) -> None:
    """The reason is told, frontends let it go, the process is not started again, and the others go on."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        fleet = stage.supervisor.fleet
        adding = asyncio.ensure_future(fleet.add(model("letters", "cpu", slot=7)))
        await until(lambda: len(stage.devices) == 2)
        stage.devices[1].say(Failed("no such file", "load_failed", exit_code=3))
        stage.devices[1].die()
        await until(lambda: stage.frontends[1].received(Retire))
        for frontend in stage.frontends:
            frontend.say(Retired(7))
        with pytest.raises(OperatorError, match="no such file"):
            await adding
        assert [str(process.group) for process in fleet.devices.processes] == ["digits"]
        assert (len(stage.devices), stage.ready_replicas) == (2, 1)

    play([model("digits", "cpu")], scene)


def test_a_model_that_hangs_while_it_is_added_is_given_up(play: Play) -> None:
    """Its process is ended, whoever adds it is told which model it was and what to do, and the others go on."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        fleet = stage.supervisor.fleet
        letters = _in_time(model("letters", "cpu", slot=7), 0.0)
        adding = asyncio.ensure_future(fleet.add(letters))
        await until(lambda: len(stage.devices) == 2 and stage.devices[1].hung)
        assert not adding.done(), "it may still hold memory and locks"
        stage.devices[1].load()
        assert stage.devices[1].received(AddLane) == [], "what comes now comes too late"
        stage.devices[1].die()
        await until(lambda: stage.frontends[1].received(Retire))
        for frontend in stage.frontends:
            frontend.say(Retired(7))
        with pytest.raises(
            LoadTimeout, match=r"letters version 1 was not loaded within 0 s, .* load_timeout_s"
        ):
            await adding
        assert [str(process.group) for process in fleet.devices.processes] == ["digits"]
        assert not stage.devices[0].hung
        assert (len(stage.devices), stage.ready_replicas) == (2, 1)

    play([model("digits", "cpu")], scene)


def test_a_model_that_hangs_at_the_start_ends_it(play: Play) -> None:
    """Of several in one process, the message names the one that was being loaded."""

    async def scene(stage: Stage) -> None:
        (device,) = stage.devices
        device.say(DeviceChosen("cpu", "a CPU", "as asked for"))
        device.say(Loaded(0, ROWS, load_s=0.5, warm_up_s=0.25))
        await until(lambda: device.hung)
        device.die()
        assert stage.ready == []

    letters = _in_time(model("letters", "cpu", slot=1), 0.0)
    with pytest.raises(LoadTimeout, match="letters version 1 was not loaded within 0 s"):
        play([model("digits", "cpu"), letters], scene)


def test_a_broken_model_does_not_take_the_others_of_its_process_along(play: Play) -> None:
    """It is left out with its reason: frontends let it go, and the one process serves what it could load."""

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        (device,) = stage.devices
        device.say(DeviceChosen("cpu", "a CPU", "as asked for"))
        device.say(Failed("digits is no model", "load_failed", exit_code=3, number=0))
        device.say(Loaded(1, ROWS, load_s=0.5, warm_up_s=0.25))
        for frontend in stage.frontends:
            frontend.confirm()
        await until(lambda: stage.frontends[1].received(Retire))
        for frontend in stage.frontends:
            frontend.say(Retired(0))
        await until(lambda: stage.ready)
        (start_up,) = stage.ready
        assert [report.deployed.name for report in start_up.models] == ["letters"]
        assert {key: str(error) for key, error in start_up.broken.items()} == {
            ("digits", 1): "digits is no model"
        }
        (route,) = [told for told in stage.frontends[0].received(Route) if told.name == "digits"]
        (version,) = route.versions
        assert version.standing == VersionStatus(0, "END", "digits is no model", "load_failed")
        assert len(stage.devices) == 1

    play([model("digits", "cpu"), model("letters", "cpu", slot=1)], scene, exit_on_error=False)


def test_answers_of_a_model_that_keeps_state_are_not_kept(play: Play) -> None:
    """That it does is known once it is loaded: the start ends with what to do."""

    async def scene(stage: Stage) -> None:
        (device,) = stage.devices
        device.load(replace(ROWS, isolation=RowIsolation(False, "read", "it counts", keeps_state=True)))
        await until(lambda: device.killed)
        device.die()

    digits = replace(model("digits", "cpu"), cache_bytes=1 << 20)
    with pytest.raises(InvalidSettings, match=r"digits keeps state between requests, .*: leave cache_mb out"):
        play([digits], scene)


def test_the_first_broken_model_ends_a_server_that_needs_all(play: Play) -> None:
    """It does not wait for those behind it."""

    async def scene(stage: Stage) -> None:
        (device,) = stage.devices
        device.say(DeviceChosen("cpu", "a CPU", "as asked for"))
        device.say(Failed("digits is no model", "load_failed", exit_code=3, number=0))

    with pytest.raises(OperatorError, match="digits is no model") as ended:
        play([model("digits", "cpu"), model("letters", "cpu", slot=1)], scene, exit_on_error=True)
    assert ended.value.exit_code == 3


def test_a_model_that_ends_its_process_is_left_out_when_that_comes_back(play: Play) -> None:
    """The process loads the others anew, without the one that it was loading when it ended."""

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        stage.devices[0].say(DeviceChosen("cpu", "a CPU", "as asked for"))
        stage.devices[0].say(Loaded(0, ROWS, load_s=0.5, warm_up_s=0.25))
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2)
        (start,) = stage.devices[1].received(StartDevice)
        assert [place.name for place in start.models] == ["digits"]
        stage.devices[1].load()
        for frontend in stage.frontends:
            frontend.confirm()
        await until(lambda: stage.frontends[1].received(Retire))
        for frontend in stage.frontends:
            frontend.say(Retired(1))
        await until(lambda: stage.ready)
        assert [str(error) for error in stage.ready[0].broken.values()] == [
            "the device process was ended by SIGKILL while it loaded letters"
        ]
        assert stage.ready_replicas == 1

    play([model("digits", "cpu"), model("letters", "cpu", slot=1)], scene, exit_on_error=False)


def test_a_model_that_fails_when_its_process_comes_back_is_tried_again(play: Play) -> None:
    """It has been served before, so the process begins anew until it is served again."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2)
        stage.devices[1].say(DeviceChosen("cpu", "a CPU", "as asked for"))
        stage.devices[1].say(Failed("no memory for digits", "load_failed", exit_code=3, number=0))
        assert stage.devices[1].killed
        stage.devices[1].die()
        await until(lambda: len(stage.devices) == 3)
        (start,) = stage.devices[2].received(StartDevice)
        assert [place.name for place in start.models] == ["digits", "letters"]

    play([model("digits", "cpu"), model("letters", "cpu", slot=1)], scene)


def test_a_model_that_hangs_when_its_process_comes_back_is_tried_again(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has served it before, so it is started again; the log has the reason."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        digits = stage.supervisor.fleet.devices.processes[0].group
        digits.members = [(_in_time(digits.models[0], 0.0), 0)]
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2 and stage.devices[1].hung)
        stage.devices[1].die()
        digits.members = [(_in_time(digits.models[0], 1000.0), 0)]
        await until(lambda: len(stage.devices) == 3)
        stage.devices[2].load()
        assert (stage.devices[2].hung, stage.ready_replicas) == (False, 1)

    play([model("digits", "cpu")], scene)
    assert "(digits version 1 was not loaded within 0 s" in caplog.text


def test_processes_that_cannot_be_forked_are_tried_again(play: Play) -> None:
    """Where memory is short, processes are killed, and their successors find no memory either."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        stage.system.refusals = 4
        stage.devices[0].die()
        stage.frontends[0].die()
        await until(lambda: len(stage.children) == 5)
        stage.devices[1].load()
        stage.frontends[2].say(Started())
        assert len(stage.frontends[2].received(AttachReplica)) == 1
        assert (stage.system.refusals, stage.ready_replicas) == (0, 1)
        assert stage.totals.restarts() == {"device": 1, "frontend": 1}

    play([model("digits", "cpu")], scene)


def test_a_model_that_is_unloaded_while_its_process_is_started_again_leaves_nothing(play: Play) -> None:
    """Nobody would know that process any more, nor end it."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        stage.system.gate = asyncio.Event()
        stage.devices[0].die()
        for _ in range(10):
            await asyncio.sleep(0)
        devices = stage.supervisor.fleet.devices
        await devices.unload(devices.processes[0].group.model(0))
        stage.system.gate.set()
        await until(lambda: len(stage.devices) == 2)
        await until(lambda: stage.devices[1].ended)
        assert stage.devices[1].sent == [], "it does not load what nobody wants"
        assert devices.processes == []

    play([model("digits", "cpu")], scene)


def test_a_replica_that_could_not_be_attached_is_tried_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start waits for it; a frontend that has ended meanwhile has had it at its own start."""
    monkeypatch.setattr(fleet_module, "_ATTACH_AGAIN_S", 0.0)

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        stage.devices[0].load()
        first, second = stage.frontends
        second.confirm()
        first.say(Listening())
        (attach,) = first.received(AttachReplica)
        first.say(AttachFailed(attach.generation))
        await until(lambda: len(first.received(AttachReplica)) == 2)
        assert first.received(AttachReplica)[1] == attach
        assert len(stage.devices[0].received(AddLane)) == 3
        assert stage.ready == []
        first.confirm()
        await until(lambda: stage.ready)

        second.say(AttachFailed(attach.generation))
        second.die()
        await until(lambda: len(stage.frontends) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [len(frontend.received(AttachReplica)) for frontend in stage.frontends] == [2, 1, 0]

    play([model("digits", "cpu")], scene)


def test_a_supervisor_without_room_for_an_arena_tries_again(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it could not make is no fault of the frontend, which is told the rest."""
    monkeypatch.setattr(fleet_module, "_ATTACH_AGAIN_S", 0.0)

    async def scene(stage: Stage) -> None:
        stage.devices[0].load()
        with room_for_descriptors(1):
            for frontend in stage.frontends:
                frontend.say(Started())
        assert [type(message) for message in stage.frontends[0].sent] == [StartFrontend, Listen]
        await until(lambda: all(frontend.received(AttachReplica) for frontend in stage.frontends))

    play([model("digits", "cpu")], scene)
    assert "a replica of digits cannot be attached: [Errno 24] Too many open files" in caplog.text


def test_a_frontend_that_hangs_is_ended(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """One whose loop does not turn during thirty looks; one that turns once in a while is slow, and not hung."""

    async def scene(stage: Stage) -> None:
        frontends = stage.supervisor.fleet.frontends
        first, second = (MetricMemory(stage.supervisor._metrics_fd).page(number) for number in (0, 1))
        for _ in range(60):
            frontends.end_hung()
        assert not any(child.hung for child in stage.frontends), (
            "they import and set up, and have no loop yet"
        )
        await stage.start()
        first.beat()
        second.beat()
        frontends.end_hung()
        for look in range(29):
            assert not any(child.hung for child in stage.frontends)
            if look == 20:
                second.beat()
            frontends.end_hung()
        assert not stage.frontends[0].hung
        frontends.end_hung()
        assert [child.hung for child in stage.frontends] == [True, False]
        stage.frontends[0].die()
        await until(lambda: len(stage.frontends) == 3)
        stage.frontends[2].say(Started())
        for _ in range(29):
            second.beat()
            frontends.end_hung()
        assert not stage.frontends[2].hung, "its predecessor's time is not its own"

    play([model("digits", "cpu")], scene)
    assert caplog.text.count("a frontend has done nothing for 30 s, killing it") == 1


def test_a_device_process_that_ends_while_frontends_begin_to_listen_is_started_again(play: Play) -> None:
    """It has been loaded, and that is what the operator is told."""

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        stage.devices[0].load()
        for frontend in stage.frontends:
            (attach,) = frontend.received(AttachReplica)
            frontend.say(Attached(attach.generation))
        for _ in range(5):
            await asyncio.sleep(0)
        stage.devices[0].die()
        for frontend in stage.frontends:
            frontend.say(Listening())
        await until(lambda: stage.ready)
        (report,) = stage.ready[0].models
        assert (report.signature, report.devices, report.load_s) == (ROWS, ["cpu"], 0.5)
        await until(lambda: len(stage.devices) == 2)

    play([model("digits", "cpu")], scene)


def test_the_end_does_not_wait_for_what_is_being_loaded(play: Play) -> None:
    """It cannot hear; a process that serves gets its time, and so does one that is listening."""
    staged: list[Stage] = []

    async def scene(stage: Stage) -> None:
        staged.append(stage)
        await stage.start()
        stage.supervisor._background.spawn(stage.supervisor.fleet.add(model("letters", "cpu", slot=7)))
        stage.frontends[1].die()
        await until(lambda: len(stage.children) == 5)

    play([model("digits", "cpu")], scene)
    (stage,) = staged
    assert [device.ended for device in stage.devices] == [(5.0, False), (0.5, True)]
    assert [frontend.ended for frontend in stage.frontends] == [(5.0, False), None, (0.5, True)]


def test_a_frontend_gets_no_reply_that_its_predecessor_has_asked_for(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take it for that to a request of its own, or would not know what to do with it."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        requests = stage.supervisor._requests
        answering = asyncio.Event()
        refuse = requests._refuse

        def refused(*arguments: Any) -> None:
            refuse(*arguments)
            answering.set()

        monkeypatch.setattr(requests, "_refuse", refused)
        async with stage.supervisor._rollout._turn("letters"):
            stage.frontends[0].say(AskUnload(0, "letters"))
            stage.frontends[0].die()
            await until(lambda: len(stage.frontends) == 3)
        await answering.wait()
        successor = stage.frontends[2]
        for frontend in (successor, stage.frontends[0]):
            assert frontend.received(Reply) == frontend.received(Refusal) == []
        successor.say(AskIndex(0, ready=True))
        await until(lambda: successor.received(Reply))
        entries = ({"name": "digits", "version": "1", "state": "READY"},)
        assert successor.received(Reply) == [Reply(0, entries)]

    play([model("digits", "cpu")], scene)


def test_a_frontend_whose_rows_are_too_small_gets_larger_ones(play: Play) -> None:
    """For that replica alone, under the same generation; whoever is joined later begins with as large ones."""
    packed = Signature(BODIES.inputs, BODIES.outputs, takes="tensors")

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        for device in stage.devices:
            device.load(packed)
        for frontend in stage.frontends:
            frontend.confirm()
        await until(lambda: stage.ready)
        first, second = stage.frontends
        replica, other = first.received(AttachReplica)
        first.say(Outgrown(replica.generation, 1 << 24))
        *_, larger = first.received(AttachReplica)
        assert larger.generation == replica.generation
        assert larger.signature == packed.with_answers(1 << 24)
        assert [len(device.received(AddLane)) for device in stage.devices] == [3, 2]
        assert stage.devices[0].received(AddLane)[2].signature == larger.signature
        assert len(second.received(AttachReplica)) == 2
        first.say(Outgrown(999, 1 << 24))
        assert len(first.received(AttachReplica)) == 3, "that replica has ended meanwhile"
        second.die()
        await until(lambda: len(stage.frontends) == 3)
        stage.frontends[2].say(Started())
        assert [message.signature for message in stage.frontends[2].received(AttachReplica)] == [
            larger.signature
        ] * 2
        assert other.signature == packed

    play([model("digits", "cpu", "cpu")], scene)
