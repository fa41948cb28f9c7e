"""Device processes that end and are started again, with the models in them."""

from __future__ import annotations

import asyncio

import pytest
from tests.descriptors import room_for_descriptors
from tests.puppets import ROWS
from tests.unit.supervisor.replicas.stage import Play, Stage, in_time, model, until

from stoker.control.device_messages import AddLane, DeviceChosen, Failed, Loaded, StartDevice
from stoker.control.frontend_messages import (
    Attached,
    AttachFailed,
    AttachReplica,
    Listen,
    Listening,
    Retire,
    Retired,
    Started,
    StartFrontend,
)
from stoker.supervisor import fleet as fleet_module


def test_a_model_that_ends_its_process_is_left_out_when_that_comes_back(play: Play) -> None:
    """The process loads the others anew, without the one that it was loading when it ended."""

    async def scene(stage: Stage) -> None:
        for frontend in stage.frontends:
            frontend.say(Started())
        stage.devices[0].say(DeviceChosen("cpu", "a CPU", "as asked for"))
        stage.devices[0].say(Loaded(0, ROWS, load_s=0.5, warm_up_s=0.25, max_batch_rows=8))
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
    """It has been served before, so a process of its own begins anew until it is served again; the others go on."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2)
        stage.devices[1].say(DeviceChosen("cpu", "a CPU", "as asked for"))
        stage.devices[1].say(Failed("no memory for digits", "load_failed", exit_code=3, number=0))
        stage.devices[1].say(Loaded(1, ROWS, load_s=0.5, warm_up_s=0.25, max_batch_rows=8))
        for place in (2, 3):
            await until(lambda place=place: len(stage.devices) == place + 1)  # type: ignore[misc]
            (start,) = stage.devices[place].received(StartDevice)
            assert [model.name for model in start.models] == ["digits"]
            stage.devices[place].say(DeviceChosen("cpu", "a CPU", "as asked for"))
            stage.devices[place].say(Failed("no memory for digits", "load_failed", exit_code=3, number=0))
            assert stage.devices[place].killed
            stage.devices[place].die()
        assert not stage.devices[1].killed

    play([model("digits", "cpu"), model("letters", "cpu", slot=1)], scene)


def test_a_model_that_hangs_when_its_process_comes_back_is_tried_again(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has served it before, so it is started again; the log has the reason."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        digits = stage.supervisor.fleet.devices.processes[0].group
        digits.members = [(in_time(digits.models[0], 0.0), 0)]
        stage.devices[0].die()
        await until(lambda: len(stage.devices) == 2 and stage.devices[1].hung)
        stage.devices[1].die()
        digits.members = [(in_time(digits.models[0], 1000.0), 0)]
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
    """Arenas that cannot be made are no fault of the frontend, which gets the other messages."""
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
