"""Requests to a model that is loaded on demand wait until it is loaded; a puppet plays the supervisor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.own_time import give_own_time
from tests.unit.gateway.rows.test_quotas import Frontends, claim
from tests.unit.gateway.test_service_manager import Frontend, memory, play

from stoker.control.frontend_messages import Ask, AskLoad, AskWake, Reply, Route, RoutedVersion
from stoker.deployment import Deployment
from stoker.errors import NotReady
from stoker.gateway import service_manager
from stoker.gateway.administration import AdminAccess, Administration
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.gateway.scoring import on_demand as module
from stoker.gateway.scoring.service import Service
from stoker.keys.callers import CallerTerms
from stoker.metrics.layout import UNLOADED_SLOT
from stoker.metrics.memory import MetricMemory
from stoker.settings.versions import Residence, VersionStatus

__all__ = ["memory"]

BODY = b'{"data": [[1, 2]]}'
SCORED = b"[[2.0,4.0]]"


class Supervisor:
    """Plays the supervisor's part of a frontend's administration.

    Attributes:
        wakes: The versions that were requested, with the seconds that their requests wait.
        callers: The callers of the same.
    """

    def __init__(self) -> None:
        self.wakes: list[tuple[str, int, float]] = []
        self.callers: list[str] = []
        self.answers: list[asyncio.Future[None]] = []

    async def wake(self, name: str, version: int, timeout_s: float, caller: str) -> None:
        self.wakes.append((name, version, timeout_s))
        self.callers.append(caller)
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]


class Scene:
    """A frontend with one model that is loaded on demand, version 3 with the number 1."""

    def __init__(self, frontend: Frontend, max_concurrent_requests: int | None = None) -> None:
        self.frontend = frontend
        self.supervisor = Supervisor()
        frontend.gateway.administration = self.supervisor  # type: ignore[assignment]  # a puppet
        frontend.manager.serve(
            Deployment(
                "digits", 3, "onnx", Path("digits.onnx"), Path(), max_batch_rows=1, max_body_bytes=1 << 20,
                number=1, slot=UNLOADED_SLOT, on_demand=True, timeout_ms=1000,
                max_concurrent_requests=max_concurrent_requests, max_queue_wait_ms=1000,
            )
        )  # fmt: skip
        self.route("unloaded")

    @property
    def service(self) -> Service:
        return self.frontend.gateway.directory.find("digits")

    def route(self, residence: Residence, slot: int = UNLOADED_SLOT, load_s: float = 0.0) -> None:
        status = VersionStatus(slot, "AVAILABLE", residence=residence)
        self.frontend.manager.route(Route("digits", 3, {}, (RoutedVersion(3, status, 1, load_s),)))

    def ask(self, body: bytes = BODY) -> asyncio.Future[tuple[int, bytes, bytes]]:
        answered = asyncio.get_running_loop().create_future()
        self.service.score(body, None, lambda *answer: answered.set_result(answer), time.monotonic_ns())
        return answered

    async def load(self, generation: int = 1) -> None:
        """Load the model, and answer its waiting requests."""
        self.route("loading", 5)
        self.frontend.attach(1, generation)
        self.route("loaded", 5)
        for answer in self.supervisor.answers:
            if not answer.done():
                answer.set_result(None)
        await self.turn()

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            self.frontend.turn_devices()


def play_on_demand(memory: MetricMemory, scene: Callable[[Scene], Any], **settings: Any) -> None:
    async def perform(frontend: Frontend) -> None:
        await scene(Scene(frontend, **settings))

    play(memory, perform)


@pytest.mark.parametrize("limit", [None, 2])
def test_requests_wait_until_their_model_is_loaded(memory: MetricMemory, limit: int | None) -> None:
    """All that wait share one load, and count as requests to the model."""

    async def scene(stage: Scene) -> None:
        assert stage.service.is_dormant
        waiting = [stage.ask() for _ in range(3)]
        await stage.turn()
        assert [wake[:2] for wake in stage.supervisor.wakes] == [("digits", 3)]
        assert 0 < stage.supervisor.wakes[0][2] <= 1
        assert not any(one.done() for one in waiting)
        await stage.load()
        timed = 0
        for one in waiting:
            status, lines, body = await asyncio.wait_for(_turned(stage, one), 60)
            assert (status, body) == (200, SCORED)
            timed += lines.count(b"server-timing: load;dur=")
        assert timed == (3 if limit is None else limit), "the third waited to be admitted"
        assert sum(memory.totals().model(5).requests().values()) == 3
        assert sum(memory.totals().model(UNLOADED_SLOT).requests().values()) == 0
        assert memory.totals().on_demand().waits >= 2
        status, _, _ = await _turned(stage, stage.ask())
        assert (status, len(stage.supervisor.wakes)) == (200, 1)

    play_on_demand(memory, scene, max_concurrent_requests=limit)


async def _turned(stage: Scene, answered: asyncio.Future[Any]) -> Any:
    while not answered.done():
        await stage.turn()
    return answered.result()


def test_an_unloaded_model_answers_the_requests_that_have_begun(memory: MetricMemory) -> None:
    """Requests that have begun are answered, later ones wait for the next load, and none is lost."""

    async def scene(stage: Scene) -> None:
        first = stage.ask()
        await asyncio.sleep(0)
        await stage.load()
        await _turned(stage, first)
        begun = stage.ask()
        await asyncio.sleep(0)
        stage.route("unloading", 5)
        stage.frontend.manager.sleeping.sleep(1)
        later = stage.ask()
        stage.frontend.manager.sweep()
        assert (stage.frontend.slept, begun.done()) == ([], False)
        assert not stage.service.ready
        assert (await _turned(stage, begun))[0] == 200
        stage.frontend.manager.sweep()
        assert stage.frontend.slept == [1]
        assert stage.frontend.manager.replicas.exchanges == {}
        stage.route("unloaded")
        assert len(stage.supervisor.wakes) == 2
        assert not later.done()
        await stage.load(generation=2)
        assert (await _turned(stage, later))[0] == 200
        assert sum(memory.totals().model(5).requests().values()) == 3

    play_on_demand(memory, scene)


def test_a_model_without_requests_is_unloaded_at_once(memory: MetricMemory) -> None:
    """A load waits for its memory."""

    async def scene(stage: Scene) -> None:
        first = stage.ask()
        await asyncio.sleep(0)
        await stage.load()
        await _turned(stage, first)
        stage.frontend.manager.sleeping.sleep(1)
        assert stage.frontend.slept == [1]
        assert stage.frontend.manager.replicas.exchanges == {}

    play_on_demand(memory, scene)


def test_a_failed_load_refuses_the_waiting_requests(memory: MetricMemory) -> None:
    """They get the supervisor's error, and the next request asks again."""

    async def scene(stage: Scene) -> None:
        waiting = [stage.ask() for _ in range(2)]
        await asyncio.sleep(0)
        stage.supervisor.answers[0].set_exception(NotReady("no room", retry_after_s=7))
        for one in waiting:
            status, lines, body = await one
            assert (status, b"no room" in body, b"retry-after: 7" in lines.lower()) == (503, True, True)
        again = stage.ask()
        await asyncio.sleep(0)
        assert len(stage.supervisor.wakes) == 2
        await stage.load()
        assert (await _turned(stage, again))[0] == 200

    play_on_demand(memory, scene)


def test_a_request_that_cannot_wait_for_the_load_is_refused_at_once(memory: MetricMemory) -> None:
    """The learned load time is its time to retry, and the load begins all the same."""

    async def scene(stage: Scene) -> None:
        stage.route("unloaded", load_s=4.5)
        status, lines, body = await stage.ask()
        assert (status, b"retry-after: 5" in lines.lower()) == (503, True)
        assert b"loads for about 5 s" in body
        await stage.turn()
        assert len(stage.supervisor.wakes) == 1
        await stage.load()
        assert (await _turned(stage, stage.ask()))[0] == 200

    play_on_demand(memory, scene)


def test_nothing_is_loaded_for_a_request_over_its_limit(memory: MetricMemory) -> None:
    """Else it would cost others their models."""

    async def scene(stage: Scene) -> None:
        quota = Frontends().of(CallerTerms("ads", 5, rows_per_s=0.5))
        stage.service.limits = msgspec.structs.replace(
            stage.service.limits, urgency=DEFAULT_URGENCY._replace(shared=quota)
        )
        claim(quota, 1)
        assert (await stage.ask())[0] == 429
        await stage.turn()
        assert stage.supervisor.wakes == []

    play_on_demand(memory, scene)


def test_waiting_requests_time_out_and_are_forgotten(memory: MetricMemory) -> None:
    """One whose deadline passes gets 504, and one whose caller has gone takes no memory any more."""

    async def scene(stage: Scene) -> None:
        on_demand = stage.service.on_demand
        assert on_demand is not None
        late = stage.ask()
        answered: list[int] = []
        gone = stage.service.score(BODY, None, lambda *answer: answered.append(1), time.monotonic_ns())
        gone.abandon()
        on_demand.sweep(time.monotonic_ns())
        assert (late.done(), stage.service.idle) == (False, False)
        on_demand.sweep(time.monotonic_ns() + 2_000_000_000)
        assert ((await late)[0], answered) == (504, [])
        assert stage.service.idle

    play_on_demand(memory, scene)


def test_bodies_that_wait_are_bounded(memory: MetricMemory) -> None:
    """Beyond a frontend's share of memory, requests get 503 with a time to retry."""

    async def scene(stage: Scene) -> None:
        waiting = [stage.ask() for _ in range(1024)]
        await asyncio.sleep(0)
        status, lines, body = await stage.ask()
        assert (status, b"too many requests wait" in body) == (503, True)
        assert b"retry-after" in lines.lower()
        large = b'{"data": [[1, 2]]}' + b" " * 30_000
        assert not any(one.done() for one in waiting)
        stage.supervisor.answers[0].set_exception(NotReady("no room"))
        await asyncio.gather(*waiting)
        held = [stage.ask(large) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in held)

    play_on_demand(memory, scene)


def test_the_server_is_ready_while_models_are_unloaded(memory: MetricMemory) -> None:
    """The server is ready, the model is not, and its state says that it can be loaded."""

    async def scene(stage: Scene) -> None:
        await asyncio.sleep(0)
        stage.frontend.gateway.check_ready()
        assert not stage.service.ready
        assert stage.frontend.gateway.directory.model_versions("digits") == {"3": "START"}
        await stage.load()
        assert stage.service.ready
        assert stage.frontend.gateway.directory.model_versions("digits") == {"3": "AVAILABLE"}

    play_on_demand(memory, scene)


def test_a_server_that_stops_loads_models_for_requests_that_have_come() -> None:
    """They are answered like all others; other requests to its supervisor get the error to come again."""

    async def perform() -> None:
        requests: list[Ask] = []
        administration = Administration(requests.append, AdminAccess())
        before = asyncio.ensure_future(administration.wake("digits", 1, 5.0, "default"))
        loading = asyncio.ensure_future(administration.load("letters"))
        await asyncio.sleep(0)
        administration.close()
        after = asyncio.ensure_future(administration.wake("faces", 1, 5.0, "default"))
        for refused in (loading, administration.load("letters")):
            with pytest.raises(NotReady, match="shutting down") as caught:
                await refused
            assert caught.value.retry_after_s == 1
        assert [type(ask) for ask in requests] == [AskWake, AskLoad, AskWake]
        for ask in (requests[0], requests[2]):
            administration.accept_reply(Reply(ask.ticket))
        await asyncio.gather(before, after)

    asyncio.run(perform())


def test_an_unload_waits_for_the_requests_of_the_load(
    memory: MetricMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One load answers all of them, however soon after it the model has to make room."""
    monkeypatch.setattr(module, "_TURN_REQUESTS", 2)

    async def scene(stage: Scene) -> None:
        waiting = [stage.ask() for _ in range(4)]
        await asyncio.sleep(0)
        stage.frontend.attach(1, 1)
        stage.frontend.manager.sleeping.sleep(1)
        assert stage.frontend.slept == []
        stage.supervisor.answers[0].set_result(None)
        for one in waiting:
            assert (await _turned(stage, one))[0] == 200
        stage.frontend.manager.sweep()
        assert (stage.frontend.slept, len(stage.supervisor.wakes)) == ([1], 1)

    play_on_demand(memory, scene)


@pytest.mark.parametrize("ends", ["served", "late"])
def test_a_model_stays_for_a_request_that_waits_elsewhere(
    memory: MetricMemory, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Until it is submitted or given up, but not for ever; one that comes while others are served is served too."""

    async def scene(stage: Scene) -> None:
        on_demand = stage.service.on_demand
        assert on_demand is not None
        lease = on_demand.lease()
        lease.__enter__()
        learning = asyncio.ensure_future(stage.service.learn_signature())
        await stage.turn()
        stage.frontend.attach(1, 1)
        stage.frontend.manager.sleeping.sleep(1)
        stage.frontend.manager.sweep()
        stage.supervisor.answers[0].set_result(None)
        await learning
        assert (await _turned(stage, stage.ask()))[0] == 200
        assert stage.frontend.slept == []
        if ends == "late":
            now_ns = time.monotonic_ns()
            give_own_time(monkeypatch, service_manager, monotonic_ns=lambda: now_ns + 6_000_000_000)
            stage.frontend.manager.sweep()
            assert stage.frontend.slept == [1]
            await stage.load(generation=2)
        lease.__exit__(None, None, None)
        assert stage.frontend.slept == [1]
        assert stage.service.ready == (ends == "late"), "the next load is not undone by an old lease"

    play_on_demand(memory, scene)


def test_callers_wait_for_a_model_each_in_their_own_turn(memory: MetricMemory) -> None:
    """The supervisor knows all callers that wait for a load; a refused one costs the others nothing."""

    async def scene(stage: Scene) -> None:
        on_demand = stage.service.on_demand
        assert on_demand is not None
        other = asyncio.ensure_future(on_demand.load(60_000_000_000, "batch"))
        await stage.turn()
        waiting = [stage.ask() for _ in range(2)]
        await stage.turn()
        assert stage.supervisor.callers == ["batch", "default"]
        stage.supervisor.answers[0].set_exception(NotReady("too late"))
        with pytest.raises(NotReady, match="too late"):
            await other
        await stage.load()
        for one in waiting:
            assert (await _turned(stage, one))[0] == 200

    play_on_demand(memory, scene)
