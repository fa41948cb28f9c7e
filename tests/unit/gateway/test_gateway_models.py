"""Versions in a frontend: which service a name means, and how a service that is replaced finishes its requests."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.puppets import ROWS, PuppetRuntime, metric_memory, puppet_service

from stoker.arena import Arena
from stoker.control.frontend_messages import AttachReplica, Compare, Route, RoutedVersion, ServerRules
from stoker.deployment import Deployment
from stoker.device.batching import BatchPolicy
from stoker.device.lanes import Lane
from stoker.device.worker import Worker
from stoker.errors import NotReady, UnknownService
from stoker.gateway import takeover as samples_module
from stoker.gateway.describing.exposition import render
from stoker.gateway.gateway import Gateway, PlainHead
from stoker.gateway.protocols.repository import statistics
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.service_manager import ServiceManager
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier
from stoker.metrics.memory import MetricMemory
from stoker.settings.names import VersionStatus
from stoker.settings.traffic import Parity
from stoker.takeover.comparison import Comparison


@pytest.fixture
def memory() -> MetricMemory:
    """Counters that nobody has counted yet."""
    return metric_memory()


def service(memory: MetricMemory, version: str, name: str = "digits", slot: int = 0) -> Service:
    """A service that takes everybody's requests, and is joined to nothing."""
    return puppet_service(name, memory, slot=slot, version=version)


def test_requests_find_versions_by_number_label_and_name(memory: MetricMemory) -> None:
    """A name means the default; versions that are not there are told from those that are loading."""
    third, seventh = service(memory, "3"), service(memory, "7")
    gateway = Gateway({"digits": third}, memory)
    versions = {
        "3": ServedVersion(VersionStatus(0, "AVAILABLE"), third),
        "7": ServedVersion(VersionStatus(1, "AVAILABLE"), seventh),
        "8": ServedVersion(VersionStatus(2, "LOADING")),
        "9": ServedVersion(VersionStatus(3, "END", "unloaded")),
    }
    gateway.route("digits", ServedModel(versions, "3", {"canary": "7"}))
    assert gateway.find("digits") is gateway.service("digits") is gateway.service(None) is third
    assert gateway.find("digits", "7") is gateway.find("digits", label="canary") is seventh
    # MLServer's versions are texts.
    assert gateway.find("digits", "canary") is seventh
    assert gateway.model_versions("digits") == {
        "3": "AVAILABLE",
        "7": "AVAILABLE",
        "8": "LOADING",
        "9": "END",
    }
    with pytest.raises(NotReady, match="'digits' version 8 is not ready"):
        gateway.find("digits", "8")
    for name, version, label in (
        ("digits", "9", None),
        ("digits", "03", None),
        ("digits", None, "stable"),
        ("letters", None, None),
        ("letters", "3", None),
    ):
        with pytest.raises(UnknownService, match="Request for unknown model"):
            gateway.find(name, version, label)
    assert gateway.model_versions("letters") == {}


def test_a_model_that_could_not_be_loaded_says_why_and_others_are_ready(memory: MetricMemory) -> None:
    """By whatever path it is asked for; the server is ready without it."""
    gateway = Gateway({"letters": service(memory, "1", "letters")}, memory)
    broken = ServedVersion(VersionStatus(1, "END", "digits is no model", "load_failed"))
    gateway.route("digits", ServedModel({"1": broken}, "1"))
    for ask in (gateway.service, gateway.find, lambda name: gateway.find(name, "1")):
        with pytest.raises(NotReady, match=r"'digits'.* could not be loaded: digits is no model"):
            ask("digits")
    gateway.only = "digits"
    with pytest.raises(NotReady, match="could not be loaded"):
        gateway.service(None)
    del gateway.services["letters"]
    gateway.check_ready()


def test_both_doors_follow_a_change_at_once(memory: MetricMemory) -> None:
    """Exact targets are found anew, and what heads have meant is forgotten."""
    third, seventh = service(memory, "3"), service(memory, "7")
    gateway = Gateway({"digits": third}, memory)
    for heads in (gateway.heads, gateway.distant_heads):
        gateway.cache_head(heads, b"POST /score", PlainHead(third, b"", 1, None, closes=False))
    gateway.route("digits", ServedModel({"7": ServedVersion(VersionStatus(1, "AVAILABLE"), seventh)}, "7"))
    assert gateway.heads == gateway.distant_heads == {}
    assert gateway.routes == {b"/score": seventh, b"/api/v1/service/digits/score": seventh}
    assert gateway.infer_routes == {
        b"/v2/models/digits/infer": seventh,
        b"/v2/models/digits/versions/7/infer": seventh,
    }
    assert gateway.prediction_routes == {
        b"/predictions/digits": seventh,
        b"/predictions/digits/7": seventh,
    }
    gateway.route("digits", ServedModel({"7": ServedVersion(VersionStatus(1, "END"))}, None))
    assert (gateway.routes, gateway.infer_routes, gateway.prediction_routes) == ({}, {}, {})
    with pytest.raises(UnknownService, match="none is loaded"):
        gateway.service(None)
    gateway.check_ready()


def test_a_model_that_comes_later_does_not_take_the_short_path_away(memory: MetricMemory) -> None:
    """`/score` belongs to the model that the server was started with."""
    digits, letters = service(memory, "1"), service(memory, "1", "letters")
    gateway = Gateway({"digits": digits}, memory)
    gateway.route("letters", ServedModel.of(letters, 1))
    assert gateway.routes[b"/score"] is gateway.service(None) is digits
    assert gateway.service("letters") is letters
    several = Gateway({"digits": digits, "letters": letters}, memory)
    with pytest.raises(UnknownService, match="Several services"):
        several.service(None)
    several.route("letters", ServedModel({}, None))
    assert list(several.models) == ["digits"]


def test_statistics_are_those_of_the_counters(memory: MetricMemory) -> None:
    """Requests, rows and batches are counted apart; the times are those of as many requests as were answered."""
    digits = service(memory, "3")
    gateway = Gateway({"digits": digits}, memory)
    for _ in range(2):
        digits.metrics.note_scored(3, 1_000, 9_000)
    digits.metrics.flush()
    digits.metrics.count_request(400)
    device = memory.page(64).model(0)
    device.observe_batch(4, "idle", 10_000)
    device.observe_batch(2, "full", 1_000)
    (found,) = statistics(gateway, "digits", "3")
    assert (found["name"], found["version"]) == ("digits", "3")
    assert (found["inference_count"], found["execution_count"]) == (6, 2)
    times = found["inference_stats"]
    assert times["success"] == {"count": 2, "ns": 18_000}
    assert times["fail"] == {"count": 1, "ns": 0}
    assert times["compute_input"] == {"count": 2, "ns": 2_000}
    # Six rows took 42 µs together, so a request takes 7 µs.
    assert times["compute_infer"] == {"count": 2, "ns": 14_000}
    assert times["compute_output"] == {"count": 2, "ns": 0}
    assert (times["cache_hit"], times["cache_miss"]) == ({"count": 0, "ns": 0}, {"count": 0, "ns": 0})
    digits.metrics.count_cache(300, found=True)
    digits.metrics.count_cache(200, found=False)
    digits.metrics.count_cache_insertion(50)
    times = statistics(gateway)[0]["inference_stats"]
    assert (times["cache_hit"], times["cache_miss"]) == ({"count": 1, "ns": 300}, {"count": 1, "ns": 250})
    assert found["last_inference"] > 1_700_000_000_000
    assert [one["name"] for one in statistics(gateway)] == ["digits"]
    for name, version in (("letters", None), ("digits", "4")):
        with pytest.raises(UnknownService):
            statistics(gateway, name, version)


class Frontend:
    """A frontend's roster beside a device that a test turns by hand.

    Attributes:
        retired: Numbers of services of which nothing is left.
        outgrown: Generations that were said to need larger rows, with the room for answers.
        arriving: Whether a body arrives that the service does not know of.
    """

    def __init__(self, memory: MetricMemory) -> None:
        self.gateway = Gateway({}, memory)
        self.retired: list[int] = []
        self.slept: list[int] = []
        self.arriving = False
        self.workers: list[Worker] = []
        self._memory = memory
        server = ServerRules(
            auth=False,
            token_auth=False,
            keys_dir=Path("nowhere"),
            max_body_bytes=1000,
            max_image_pixels=1000,
            frontends=1,
            large_bodies_bytes=1 << 20,
        )
        self.outgrown: list[tuple[int, int]] = []
        self.roster = ServiceManager(
            self.gateway,
            memory.page(0),
            server,
            lambda _: self.arriving,
            self.retired.append,
            lambda *asked: self.outgrown.append(asked),
            self.slept.append,
        )

    def load(
        self,
        number: int,
        version: int,
        runtime: PuppetRuntime | None = None,
        parity: Parity | None = None,
        cache_bytes: int = 0,
    ) -> None:
        """Serve a version, joined to a device that doubles unless it is told otherwise."""
        self.roster.serve(
            Deployment(
                "digits",
                version,
                "onnx",
                Path("digits.onnx"),
                Path(),
                max_batch_rows=1,
                max_body_bytes=1 << 20,
                number=number,
                slot=number,
                timeout_ms=1000,
                max_queue_wait_ms=0,
                parity=parity or Parity(),
                cache_bytes=cache_bytes,
            )
        )
        self.attach(number, number, runtime)

    def attach(self, number: int, generation: int, runtime: PuppetRuntime | None = None) -> None:
        """Join a service to a device."""
        fd = Arena.create(ROWS, 4)
        near, far = socket.socketpair()
        worker = Worker(runtime or PuppetRuntime(), BatchPolicy(4), self._memory.page(64).model(number))
        worker.add_lane(Lane(Arena(fd, ROWS, 4), far))
        worker.turn(0)
        self.workers.append(worker)
        joined = AttachReplica(number, generation=generation, signature=ROWS, capacity_rows=4)
        assert self.roster.attach(joined, [fd, near.detach()])

    def route(self, **numbers: int) -> None:
        """Send everybody to the last of these versions."""
        versions = tuple(
            RoutedVersion(int(version[1:]), VersionStatus(0, "AVAILABLE"), number)
            for version, number in numbers.items()
        )
        self.roster.route(Route("digits", versions[-1].version, {}, versions))

    def turn_devices(self) -> None:
        """Let the devices answer what they have."""
        for worker in self.workers:
            worker.turn(0)

    def close(self) -> None:
        """Let go of everything."""
        for exchange in self.roster.exchanges.values():
            exchange.close()
        for worker in self.workers:
            worker.stop()
            worker.serve()


def play(memory: MetricMemory, scene: Callable[[Frontend], Any]) -> None:
    """Run a scene with a frontend on an event loop."""

    async def perform() -> None:
        frontend = Frontend(memory)
        try:
            await scene(frontend)
        finally:
            frontend.close()

    # As in a frontend: numbers that a model's type cannot hold are errors.
    with np.errstate(over="raise"):
        asyncio.run(perform())


def test_a_replaced_service_answers_what_it_has_begun(memory: MetricMemory) -> None:
    """Requests keep the service that they were sent to, and it leaves after the last answer."""

    async def scene(frontend: Frontend) -> None:
        frontend.load(1, 3)
        frontend.route(v3=1)
        answered = asyncio.get_running_loop().create_future()
        old = frontend.gateway.find("digits")
        old.score(
            b'{"data": [[1, 2]]}', None, lambda status, *_: answered.set_result(status), time.monotonic_ns()
        )
        await asyncio.sleep(0)
        frontend.load(2, 7)
        frontend.route(v7=2)
        frontend.roster.retire(1)
        frontend.roster.sweep()
        assert (frontend.gateway.find("digits").version, frontend.retired) == ("7", [])
        assert not old.idle
        frontend.turn_devices()
        assert await answered == 200
        frontend.roster.sweep()
        assert frontend.retired == [1]
        assert old.exchanges == []
        frontend.roster.retire(1)
        assert frontend.retired == [1, 1], "a supervisor that asks again is answered"
        assert not frontend.roster.attach(AttachReplica(1, 9, ROWS, 4), [os.dup(0), os.dup(0)])

    play(memory, scene)


def test_kept_answers_are_those_of_one_load(memory: MetricMemory) -> None:
    """Another version, a reload, and the process that comes after one that has ended answer for themselves."""

    async def scene(frontend: Frontend) -> None:
        async def ask() -> bytes:
            answered = asyncio.get_running_loop().create_future()
            service = frontend.gateway.find("digits")
            service.score(
                b'{"data": [[1, 2]]}',
                None,
                lambda *answer: answered.set_result(answer[2]),
                time.monotonic_ns(),
            )
            await asyncio.sleep(0)
            frontend.turn_devices()
            body: bytes = await answered
            return body

        runtimes = [PuppetRuntime(), PuppetRuntime(answer=lambda inputs: [inputs[0] * 3])]
        frontend.load(1, 3, runtimes[0], cache_bytes=10_000)
        frontend.route(v3=1)
        assert [await ask() for _ in range(3)] == [b"[[2.0,4.0]]"] * 3
        assert len(runtimes[0].batches) == 1
        frontend.load(2, 3, runtimes[1], cache_bytes=10_000)
        frontend.route(v3=2)
        assert [await ask() for _ in range(3)] == [b"[[3.0,6.0]]"] * 3
        cache = frontend.gateway.find("digits").replicas.cache
        assert cache is not None
        assert len(cache) == 1
        frontend.roster.detach(2)
        assert len(cache) == 0

    play(memory, scene)


def test_readiness_listeners_are_notified_of_each_change(memory: MetricMemory) -> None:
    """Listeners are called when replicas join or leave, versions change and draining begins."""

    async def scene(frontend: Frontend) -> None:
        gateway, seen = frontend.gateway, []
        gateway.on_readiness.append(
            lambda: seen.append([service.ready for service in gateway.services.values()])
        )
        frontend.load(1, 3)
        assert seen == [[]]
        frontend.route(v3=1)
        assert seen[1:] == [[True]]
        frontend.roster.detach(1)
        assert seen[2:] == [[False]]
        gateway.start_draining()
        assert len(seen) == 4

    play(memory, scene)


def test_a_service_waits_for_bodies_that_arrive(memory: MetricMemory) -> None:
    """A caller whose body is on its way is answered too, by whichever door it comes."""

    async def scene(frontend: Frontend) -> None:
        frontend.load(1, 3)
        frontend.route(v3=1)
        served = frontend.gateway.find("digits")
        served.arriving += 1
        frontend.roster.retire(1)
        frontend.roster.sweep()
        assert frontend.retired == []
        served.arriving -= 1
        frontend.arriving = True
        frontend.roster.sweep()
        assert frontend.retired == []
        frontend.arriving = False
        frontend.roster.sweep()
        assert frontend.retired == [1]

    play(memory, scene)


def test_larger_rows_are_joined_under_the_same_generation(memory: MetricMemory) -> None:
    """Also for a service that leaves: its last requests may wait for them."""

    async def scene(frontend: Frontend) -> None:
        frontend.load(1, 3)
        frontend.route(v3=1)
        service = frontend.gateway.find("digits")
        (old,) = service.exchanges
        frontend.roster.request_larger(old, 4096)
        assert frontend.outgrown == [(1, 4096)]
        service.arriving += 1
        frontend.roster.retire(1)
        fd = Arena.create(ROWS, 8)
        near, far = socket.socketpair()
        joined = AttachReplica(1, generation=1, signature=ROWS, capacity_rows=8)
        assert frontend.roster.attach(joined, [fd, near.detach()])
        (new,) = service.exchanges
        assert (new.arena.capacity, old.lost) == (8, False)
        frontend.roster.sweep()
        assert old.lost, "nothing is in it"
        service.arriving -= 1
        frontend.roster.sweep()
        assert (frontend.retired, new.lost, service.exchanges) == ([1], True, [])
        far.close()

    play(memory, scene)


def test_requests_that_name_no_version_go_by_weights(memory: MetricMemory) -> None:
    """Exactly, whatever the protocol; those that name one go there, and no door goes past the turns."""

    async def scene(frontend: Frontend) -> None:
        gateway = frontend.gateway
        frontend.load(1, 3)
        frontend.load(2, 7)
        gateway.only = "digits"
        frontend.route(v7=2, v3=1)
        whole = gateway.routes, gateway.infer_routes
        known = Route("digits", 3, {"next": 7}, _versions(v3=1, v7=2), {"3": 75, "7": 25})
        frontend.roster.route(known)
        default = gateway.service("digits")
        chosen = [gateway.choose_version(default, {}).version for _ in range(5)]
        frontend.roster.route(known)
        chosen += [gateway.choose_version(default, {}).version for _ in range(3)]
        assert chosen == ["3", "3", "7", "3"] * 2, "the sequence goes on where nothing has changed"
        assert gateway.find("digits", "7").version == gateway.find("digits", label="next").version == "7"
        assert gateway.routes == {}
        assert sorted(gateway.infer_routes) == [
            b"/v2/models/digits/versions/3/infer",
            b"/v2/models/digits/versions/7/infer",
        ]
        default.access = Access(KeyVerifier(Path("no-keys"), "digits", Keys("k" * 32, "k" * 32)))
        assert gateway.choose_version(default, {}) is default, "who is refused takes no turn"
        frontend.roster.route(Route("digits", 3, {}, _versions(v3=1, v7=2), {"3": 75}))
        assert gateway.split_of(default) is None
        assert (gateway.routes.keys(), gateway.infer_routes.keys()) == tuple(map(dict.keys, whole))
        assert b'stoker_version_share_ratio{model="digits",version="3"} 1.0' in render(
            memory, gateway.models, gateway.load
        )
        frontend.roster.route(known)
        assert b'stoker_version_share_ratio{model="digits",version="7"} 0.25' in render(
            memory, gateway.models, gateway.load
        )

    play(memory, scene)


def _versions(**numbers: int) -> tuple[RoutedVersion, ...]:
    return tuple(
        RoutedVersion(int(version[1:]), VersionStatus(0, "AVAILABLE"), number)
        for version, number in numbers.items()
    )


async def score(frontend: Frontend, body: bytes) -> int:
    """Score one request, and let the frontend look after its services."""
    answered = asyncio.get_running_loop().create_future()
    service = frontend.gateway.find("digits")
    service.score(body, None, lambda status, *_: answered.set_result(status), time.monotonic_ns())
    await asyncio.sleep(0)
    frontend.turn_devices()
    status: int = await answered
    frontend.roster.sweep()
    return status


async def compared(frontend: Frontend, sample: Path | None = None) -> Comparison:
    """Compare the versions 1 and 2."""
    comparing = asyncio.ensure_future(frontend.roster.compare(Compare(0, 1, 2, sample)))
    while not comparing.done():
        frontend.turn_devices()
        await asyncio.sleep(0)
    return await comparing


def test_sampled_requests_are_run_through_both_versions(
    memory: MetricMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken where they lie, told field by field, and are no caller's: nobody's counters have them."""

    async def scene(frontend: Frontend) -> None:
        monkeypatch.setattr(samples_module, "_PERIOD_NS", 0)
        parity = Parity("warn")
        frontend.load(1, 3, parity=parity)
        frontend.load(2, 7, PuppetRuntime(answer=lambda inputs: [inputs[0][:, ::-1] * 2]), parity)
        frontend.route(v3=1)
        assert (await compared(frontend)).requests == 0
        assert await score(frontend, b'{"data": [[1, 2]]}') == 200
        comparison = await compared(frontend)
        assert dict(comparison.results) == {"different": 1}
        frontend.roster.sweep()
        assert (await compared(frontend)).requests == 1, "what runs again is no sample"
        y = comparison.fields["y"]
        assert (y.largest, y.relative, y.classified, y.flipped) == (2.0, 0.5, 1, 1)
        assert len(comparison.old_ns) == len(comparison.new_ns) == 1
        totals = memory.totals()
        assert (totals.model(1).requests()[200], totals.model(2).requests()[200]) == (1, 0)
        assert (totals.model(2).comparisons()["different"], totals.model(2).flips) == (2, 2)

    play(memory, scene)


def test_copies_of_requests_are_compared_and_answered_to_nobody(memory: MetricMemory) -> None:
    """So many of a hundred; what the shadow does changes nothing for callers, and ends with its route."""

    async def scene(frontend: Frontend) -> None:
        broken = PuppetRuntime(answer=lambda inputs: [inputs[0] * 3])
        broken.fails_for = {9.0}
        frontend.load(1, 3)
        frontend.load(2, 7, broken)
        routed = Route("digits", 3, {"next": 7}, _versions(v3=1, v7=2))
        frontend.roster.route(replace(routed, shadows={"7": 50}))

        async def scored(*numbers: int) -> dict[str, int]:
            for number in numbers:
                assert await score(frontend, b'{"data": [[%d, 2]]}' % number) == 200
            for _ in range(20):
                await asyncio.sleep(0)
                frontend.turn_devices()
            return {
                result: count for result, count in memory.totals().model(2).comparisons().items() if count
            }

        frontend.roster.sweep()
        assert await scored(1, 2, 3, 4) == {"different": 2}
        assert await scored(9, 9) == {"different": 2, "failed": 1}
        assert (memory.totals().model(1).requests()[200], memory.totals().model(2).requests()[200]) == (6, 0)
        frontend.roster.route(routed)
        assert await scored(1, 2, 3, 4) == {"different": 2, "failed": 1}

    play(memory, scene)


def test_without_samples_a_file_is_run_and_one_that_does_not_fit_is_nothing(
    memory: MetricMemory, tmp_path: Path
) -> None:
    """A version that fails where the other one answers has failed."""
    fits, other = tmp_path / "sample.json", tmp_path / "other.json"
    fits.write_text('{"data": [[1, 2]]}')
    other.write_text('{"data": "nonsense"}')

    async def scene(frontend: Frontend) -> None:
        broken = PuppetRuntime()
        broken.fails_for = {1.0}
        frontend.load(1, 3)
        frontend.load(2, 7, broken)
        frontend.route(v3=1)
        assert await score(frontend, b'{"data": [[1, 2]]}') == 200
        assert (await compared(frontend)).requests == 0, "nobody has asked for samples"
        assert (await compared(frontend, other)).requests == 0
        assert dict((await compared(frontend, fits)).results) == {"failed": 1}

    play(memory, scene)
