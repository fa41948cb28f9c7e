"""Models that are loaded while the server runs, and what becomes of those that fail or hang."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.puppets import ROWS
from tests.unit.supervisor.replicas.stage import Play, Stage, in_time, model, until

from stoker.control.device_messages import (
    AddLane,
    DeviceChosen,
    Failed,
    Loaded,
    StartDevice,
    Unloaded,
    UnloadModel,
)
from stoker.control.frontend_messages import (
    AttachReplica,
    Retire,
    Retired,
    Route,
    Serve,
    Started,
    StartFrontend,
)
from stoker.errors import InvalidSettings, LoadTimeout, OperatorError
from stoker.row_isolation import RowIsolation
from stoker.settings.versions import VersionStatus


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


def test_a_process_for_a_model_on_demand_does_not_yield_the_cores(play: Play) -> None:
    """Callers wait for it."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        letters = replace(model("letters", "cpu", slot=7), on_demand=True)
        adding = asyncio.ensure_future(stage.supervisor.fleet.add(letters))
        await until(lambda: len(stage.devices) == 2)
        (start,) = stage.devices[1].received(StartDevice)
        assert not start.yields
        adding.cancel()

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


def test_failed_addition_leaves_nothing(play: Play) -> None:
    """Frontends drop the model, its process is not started again, and other models go on."""

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
        letters = in_time(model("letters", "cpu", slot=7), 0.0)
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
        device.say(Loaded(0, ROWS, load_s=0.5, warm_up_s=0.25, max_batch_rows=8))
        await until(lambda: device.hung)
        device.die()
        assert stage.ready == []

    letters = in_time(model("letters", "cpu", slot=1), 0.0)
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
        device.say(Loaded(1, ROWS, load_s=0.5, warm_up_s=0.25, max_batch_rows=8))
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
        (route,) = [route for route in stage.frontends[0].received(Route) if route.name == "digits"]
        (version,) = route.versions
        assert version.status == VersionStatus(0, "END", "digits is no model", "load_failed")
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


def test_the_end_does_not_wait_for_loads(play: Play) -> None:
    """A process that loads reads no message; one that serves or listens gets its time."""
    staged: list[Stage] = []

    async def scene(stage: Stage) -> None:
        staged.append(stage)
        await stage.start()
        stage.supervisor.background.spawn(stage.supervisor.fleet.add(model("letters", "cpu", slot=7)))
        stage.frontends[1].die()
        await until(lambda: len(stage.children) == 5)

    play([model("digits", "cpu")], scene)
    (stage,) = staged
    assert [device.ended for device in stage.devices] == [(5.0, False), (0.5, True)]
    assert [frontend.ended for frontend in stage.frontends] == [(5.0, False), None, (0.5, True)]
