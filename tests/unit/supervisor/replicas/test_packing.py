"""Models that are loaded beside others in a running device process, and what becomes of a process that they crash."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.puppets import ROWS
from tests.unit.supervisor.replicas.stage import Play, PuppetChild, Stage, in_time, model, until

from stoker.control.device_messages import (
    AddLane,
    Failed,
    Loaded,
    LoadModel,
    StartDevice,
    Unloaded,
    UnloadModel,
)
from stoker.control.frontend_messages import Retire, Retired
from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, LoadTimeout, OperatorError
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE
from stoker.settings.choices import Acceleration
from stoker.supervisor import device_processes
from stoker.supervisor.groups import Group, group
from stoker.supervisor.recycler import Recycler

MODELS = [model("digits", "cpu"), model("letters", "cpu", slot=1), model("faces", "cpu", slot=2)]


def names(process: PuppetChild) -> list[str]:
    """The models with which a process was started."""
    (start,) = process.received(StartDevice)
    return [place.name for place in start.models]


def loaded(number: int, memory_bytes: int = 0) -> Loaded:
    return Loaded(number, ROWS, 0.5, 0.25, max_batch_rows=8, memory_bytes=memory_bytes)


def let_run(stage: Stage, *slots: int, page: int = FIRST_DEVICE_PAGE) -> None:
    """Let these models of a process be computing, and its others not."""
    for slot in range(len(MODELS)):
        stage.memory.page(page).model(slot).run_began[0] = int(slot in slots)


def crash(child: PuppetChild) -> None:
    """Let a process end by a fault of its own."""
    child.is_blameless = False
    child.die()


async def add(stage: Stage, added: Deployment, *, memory_bytes: int = 0) -> None:
    """Load a model beside those of the first process."""
    adding = asyncio.ensure_future(stage.supervisor.fleet.add(added))
    await until(lambda: any(each.model == added for each in stage.devices[0].received(LoadModel)))
    stage.devices[0].say(loaded(added.number, memory_bytes))
    for frontend in stage.frontends:
        frontend.confirm()
    await adding


async def refused(stage: Stage, adding: asyncio.Future[None], number: int) -> None:
    """Let frontends forget a model that cannot be added, and raise why it cannot."""
    await until(lambda: stage.frontends[1].received(Retire))
    for frontend in stage.frontends:
        frontend.say(Retired(number))
    await adding


def formed(models: Sequence[Deployment], **given: Any) -> list[str]:
    """The new groups of models, each numbered."""
    numbered = [replace(deployed, slot=slot, number=slot) for slot, deployed in enumerate(models)]
    return [str(each) for each in group(numbered, **given)]


def test_a_process_has_at_most_so_many_models() -> None:
    """Those that cannot be loaded beside others do not share processes with those that can."""
    models = [model(name, "cpu") for name in "abcde"]
    captured = Acceleration(execution="graph")
    others = [model("saved", "cpu", framework="tensorflow"), replace(models[0], acceleration=captured)]
    assert formed(models, most=2) == ["a, b", "c, d", "e"]
    assert formed(models, most=1) == list("abcde")
    assert formed([models[0], others[0], models[1], others[1]], most=3) == ["a, b", "saved, a"]


def test_a_model_joins_a_running_process_of_its_device_that_has_room() -> None:
    """Not one that has it already, nor if it is to be apart; too many processes are refused without a trace."""
    full, roomy = (
        Group(64, "cpu", [(one, 0)], most, packs=True) for one, most in zip(MODELS, (1, 2), strict=False)
    )
    twice = model("twice", "cpu", "cpu", slot=9)
    assert [str(each) for each in group([twice], most=2, running=[full, roomy])] == ["twice (replica 2 of 2)"]
    assert str(roomy) == "letters, twice (replica 1 of 2)"
    roomy.remove(twice)
    apart = group([MODELS[2]], most=2, running=[roomy], apart=[2])
    assert [(str(each), each.most, each.packs) for each in apart] == [("faces", 1, False)]
    pages = range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE)
    with pytest.raises(InvalidSettings, match="at most 64 device processes can run"):
        group([twice], taken=pages, most=2, running=[roomy])
    assert str(roomy) == "letters"


def test_a_model_is_loaded_beside_those_that_serve(play: Play) -> None:
    """Its process takes it in and lets it go, and is started again with it when it ends."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        (start,) = stage.devices[0].received(StartDevice)
        assert (start.packs, start.name) == (True, "cpu")
        await add(stage, MODELS[1])
        assert [lane.number for lane in stage.devices[0].received(AddLane)] == [0, 0, 1, 1]
        assert len(stage.devices) == 1
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2)
        assert names(stage.devices[1]) == ["digits", "letters"]
        stage.devices[1].load()
        removing = asyncio.ensure_future(stage.supervisor.fleet.remove(MODELS[1]))
        await until(lambda: stage.frontends[1].received(Retire))
        for frontend in stage.frontends:
            frontend.say(Retired(1))
        await until(lambda: stage.devices[1].received(UnloadModel))
        stage.devices[1].say(Unloaded(1))
        await removing
        assert stage.devices[1].ended is None

    play(MODELS[:1], scene, models_per_process=2)


def test_no_model_joins_a_process_during_a_slow_load(play: Play) -> None:
    """Until the slow load ends, the model would wait for it there."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        devices = stage.supervisor.fleet.devices
        adding = asyncio.ensure_future(stage.supervisor.fleet.add(MODELS[1]))
        await until(lambda: stage.devices[0].received(LoadModel))
        assert devices.has_room_for(MODELS[2])
        devices.keep_apart(MODELS[1])
        assert not devices.has_room_for(MODELS[2])
        stage.devices[0].say(loaded(1))
        for frontend in stage.frontends:
            frontend.confirm()
        await adding
        assert devices.has_room_for(MODELS[2])

    play(MODELS[:1], scene, models_per_process=3)


def test_a_model_that_cannot_be_loaded_costs_the_others_nothing(play: Play) -> None:
    """The load fails with the reason; the process goes on."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        adding = asyncio.ensure_future(stage.supervisor.fleet.add(MODELS[1]))
        await until(lambda: stage.devices[0].received(LoadModel))
        stage.devices[0].say(Failed("no model", "load_failed", exit_code=3, number=1))
        with pytest.raises(OperatorError, match="no model"):
            await refused(stage, adding, 1)
        assert (stage.devices[0].ended, stage.devices[0].killed, len(stage.devices)) == (None, False, 1)
        assert stage.supervisor.fleet.devices.failed == {}

    play(MODELS[:1], scene, models_per_process=2)


def test_a_load_that_hangs_leaves_the_others_where_they_are(play: Play) -> None:
    """They serve on, no more models join them, and they are to move; the hanging one is alone at its next load."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        adding = asyncio.ensure_future(stage.supervisor.fleet.add(in_time(MODELS[1], 0.0)))
        with pytest.raises(LoadTimeout, match="letters version 1 was not loaded within 0 s; the log has"):
            await refused(stage, adding, 1)
        devices = stage.supervisor.fleet.devices
        assert (stage.devices[0].dumped, stage.devices[0].killed, stage.devices[0].hung) == (
            True,
            False,
            False,
        )
        assert stage.ready_replicas == 1
        assert devices.find_worn() is devices.processes[0]
        for number, again in ((3, MODELS[1]), (4, MODELS[2])):
            await devices.start([replace(again, number=number)], quiet=True)
        packs = [start.packs for child in stage.devices for start in child.received(StartDevice)]
        assert packs == [True, False, True]

    play(MODELS[:1], scene, models_per_process=8)


def test_a_model_that_crashes_its_process_at_the_load_is_set_apart(play: Play) -> None:
    """The process comes back with its other models; the next load of the crashing one has a process of its own."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        adding = asyncio.ensure_future(stage.supervisor.fleet.add(MODELS[1]))
        await until(lambda: stage.devices[0].received(LoadModel))
        crash(stage.devices[0])
        with pytest.raises(OperatorError, match="while it loaded letters"):
            await refused(stage, adding, 1)
        await until(lambda: len(stage.devices) == 2)
        assert names(stage.devices[1]) == ["digits"]
        stage.devices[1].load()
        again = replace(MODELS[1], number=3)
        adding = asyncio.ensure_future(stage.supervisor.fleet.add(again))
        await until(lambda: len(stage.devices) == 3)
        assert names(stage.devices[2]) == ["letters"]
        adding.cancel()

    play(MODELS[:1], scene, models_per_process=8)


def test_the_only_model_that_ran_in_a_crash_gets_a_process_of_its_own(play: Play) -> None:
    """The others come back together; killed from outside, they all do."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        let_run(stage, 1)
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2)
        assert names(stage.devices[1]) == ["digits", "letters", "faces"]
        stage.devices[1].load()
        let_run(stage, 1)
        crash(stage.devices[1])
        await until(lambda: len(stage.devices) == 4)
        assert sorted(map(names, stage.devices[2:])) == [["digits", "faces"], ["letters"]]

    play(MODELS, scene)


def test_of_several_that_ran_those_of_two_crashes_are_set_apart(play: Play) -> None:
    """Once is no proof."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        for number, ran in enumerate([(0, 1), (1, 2)]):
            let_run(stage, *ran)
            crash(stage.devices[number])
            await until(lambda number=number: len(stage.devices) >= number + 2)  # type: ignore[misc]
            if not number:
                assert names(stage.devices[1]) == ["digits", "letters", "faces"]
                stage.devices[1].load()
        await until(lambda: len(stage.devices) == 4)
        assert sorted(map(names, stage.devices[2:])) == [["digits", "faces"], ["letters"]]

    play(MODELS, scene)


def test_a_process_that_has_outgrown_its_models_is_worn(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before it has loaded all of them, and within what its models took it may do as it likes."""
    memory = [300 << 20]
    monkeypatch.setattr(device_processes, "private_memory", lambda _: memory[0])

    async def scene(stage: Stage) -> None:
        await stage.start()
        devices = stage.supervisor.fleet.devices
        await add(stage, MODELS[1], memory_bytes=200 << 20)
        # 300 MiB of its own, 0 and 200 MiB of its models, half as much again, and 256 MiB.
        memory[0] = 1006 << 20
        assert devices.find_worn() is None
        memory[0] += 1
        worn = devices.find_worn()
        assert worn is devices.processes[0]
        assert worn.closed == "it has 1006 MiB of memory, its 2 models took 500 MiB"
        crash(stage.devices[0])
        await until(lambda: len(stage.devices) == 2)
        stage.devices[1].load()
        assert devices.find_worn() is None, "it is another one now"

    play(MODELS[:1], scene, models_per_process=8)


class PuppetRollout:
    """Moves models, except for those that it cannot move."""

    def __init__(self, *stuck: str) -> None:
        self.moved: list[str] = []
        self._stuck = stuck

    async def move(self, moved: Deployment) -> None:
        self.moved.append(moved.name)
        if moved.name in self._stuck:
            raise OperatorError("it does not load")


def test_the_models_of_a_worn_process_move_one_by_one(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """One that cannot move stays, and is tried again after ten minutes."""
    now_s = [0.0]
    rollout: Any = PuppetRollout("letters")

    async def scene(stage: Stage) -> None:
        await stage.start()
        devices = stage.supervisor.fleet.devices
        recycler = Recycler(devices, rollout, lambda: now_s[0])
        assert await recycler.check()
        devices.processes[0].closed = "it leaks"
        for now_s[0] in (1.0, 600.0, 601.0):
            assert await recycler.check()

    play(MODELS, scene, models_per_process=8)
    assert rollout.moved == 2 * ["digits", "letters", "faces"]
    assert "a device process with 3 models is recycled: it leaks" in caplog.messages
    assert "letters version 1 cannot move: it does not load" in caplog.messages
