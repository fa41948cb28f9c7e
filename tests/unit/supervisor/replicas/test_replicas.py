"""Messages to frontends about replicas that come, go or differ, and frontends that end or hang."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.puppets import BODIES, ROWS
from tests.unit.supervisor.replicas.stage import WIDER, Play, Stage, model, until

from stoker.control.device_messages import AddLane, BatchingStopped, StartDevice, StopBatching
from stoker.control.frontend_messages import (
    AskIndex,
    AskUnload,
    AttachReplica,
    DetachReplica,
    IsolationChanged,
    Outgrown,
    Refusal,
    Reply,
    Started,
)
from stoker.errors import OperatorError, UnknownModel
from stoker.row_isolation import RowIsolation
from stoker.supervisor.rollout import Rollout
from stoker.tensors import Signature


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


def test_isolation_found_by_one_replica_holds_for_all(play: Play) -> None:
    """All replicas stop batching, and a restarted process learns that before it gets its lanes."""
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
        devices, digits = stage.supervisor.fleet.devices, known[0].model
        await devices.unload(digits)
        await devices.start([digits])
        await until(lambda: len(stage.devices) == 6)
        stage.devices[4].load(tried)
        assert stage.devices[4].received(StopBatching) == [StopBatching(0)], "it was only loaded again"
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


def test_a_frontend_that_hangs_is_ended(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """One whose loop does not turn during thirty looks; one that turns once in a while is slow, and not hung."""

    async def scene(stage: Stage) -> None:
        frontends = stage.supervisor.fleet.frontends
        first, second = (stage.memory.page(number) for number in (0, 1))
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


def test_a_frontend_gets_no_reply_for_its_predecessor(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take it for that to a request of its own, or would not know what to do with it."""

    async def scene(stage: Stage) -> None:
        await stage.start()
        replaced, refused = asyncio.Event(), asyncio.Event()

        async def unload(*_: object) -> None:
            await replaced.wait()
            refused.set()
            raise UnknownModel("there is no model 'letters'")

        monkeypatch.setattr(Rollout, "unload", unload)
        stage.frontends[0].say(AskUnload(0, "letters"))
        stage.frontends[0].die()
        await until(lambda: len(stage.frontends) == 3)
        replaced.set()
        await refused.wait()
        successor = stage.frontends[2]
        for frontend in (successor, stage.frontends[0]):
            assert frontend.received(Reply) == frontend.received(Refusal) == []
        successor.say(AskIndex(0, ready=True))
        await until(lambda: successor.received(Reply))
        entries = ({"name": "digits", "version": "1", "state": "READY"},)
        assert successor.received(Reply) == [Reply(0, entries)]

    play([model("digits", "cpu")], scene)


def test_a_frontend_with_too_small_rows_gets_larger_ones(play: Play) -> None:
    """For that replica alone, under the same generation; later attachments begin with rows of that size."""
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
