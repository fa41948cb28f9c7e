"""The services of a frontend: created, attached, routed, retired."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.puppets import ROWS, PuppetRuntime, metric_memory

from stoker.arena import Arena
from stoker.control.frontend_messages import AttachReplica, Compare, Route, RoutedVersion, ServerRules
from stoker.deployment import Deployment
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.lanes import Lane
from stoker.device.worker import Worker
from stoker.gateway.describing.exposition import render
from stoker.gateway.gateway import Gateway
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.service_manager import ServiceManager
from stoker.gateway.takeover import samples as samples_module
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier
from stoker.metrics.memory import MetricMemory
from stoker.settings.traffic import Parity
from stoker.settings.versions import VersionStatus
from stoker.takeover.comparison import Comparison


@pytest.fixture
def memory() -> MetricMemory:
    """Counters that nobody has counted yet."""
    return metric_memory()


class Frontend:
    """The service manager of a frontend beside a device that a test turns by hand.

    Attributes:
        retired: Numbers of the services that are retired completely.
        outgrown: Generations that need larger rows, with the bytes of their answers.
        arriving: Whether a body arrives that the service does not know of.
    """

    def __init__(self, memory: MetricMemory) -> None:
        self.gateway = Gateway(ModelDirectory({}), memory)
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
        self.manager = ServiceManager(
            self.gateway,
            memory.page(0),
            server,
            lambda _: self.arriving,
            self.retired.append,
            lambda *outgrown: self.outgrown.append(outgrown),
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
        """Serve a version, attached to a device that doubles by default."""
        self.manager.serve(
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
        """Attach a service to a device."""
        fd = Arena.create(ROWS, 4)
        near, far = socket.socketpair()
        worker = Worker(runtime or PuppetRuntime(), BatchPolicy(4), self._memory.page(64).model(number))
        worker.add_lane(Lane(Arena(fd, ROWS, 4), far))
        worker.turn(0)
        self.workers.append(worker)
        joined = AttachReplica(number, generation=generation, signature=ROWS, capacity_rows=4)
        assert self.manager.attach(joined, [fd, near.detach()])

    def route(self, **numbers: int) -> None:
        """Make the last of these versions the default."""
        versions = tuple(
            RoutedVersion(int(version[1:]), VersionStatus(0, "AVAILABLE"), number)
            for version, number in numbers.items()
        )
        self.manager.route(Route("digits", versions[-1].version, {}, versions))

    def turn_devices(self) -> None:
        """Let the devices answer their rows."""
        for worker in self.workers:
            worker.turn(0)

    def close(self) -> None:
        """Close the exchanges and stop the devices."""
        for exchange in self.manager.replicas.exchanges.values():
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


def test_retire_of_a_replaced_service_waits_for_its_last_answer(memory: MetricMemory) -> None:
    """Requests keep the service that they were sent to, and it leaves after the last answer."""

    async def scene(frontend: Frontend) -> None:
        frontend.load(1, 3)
        frontend.route(v3=1)
        answered = asyncio.get_running_loop().create_future()
        old = frontend.gateway.directory.find("digits")
        old.score(
            b'{"data": [[1, 2]]}', None, lambda status, *_: answered.set_result(status), time.monotonic_ns()
        )
        await asyncio.sleep(0)
        frontend.load(2, 7)
        frontend.route(v7=2)
        frontend.manager.retire(1)
        frontend.manager.sweep()
        assert (frontend.gateway.directory.find("digits").version, frontend.retired) == ("7", [])
        assert not old.idle
        frontend.turn_devices()
        assert await answered == 200
        frontend.manager.sweep()
        assert frontend.retired == [1]
        assert old.exchanges == []
        frontend.manager.retire(1)
        assert frontend.retired == [1, 1], "a supervisor that asks again is answered"
        assert not frontend.manager.attach(AttachReplica(1, 9, ROWS, 4), [os.dup(0), os.dup(0)])

    play(memory, scene)


def test_cached_answers_end_with_the_load_that_gave_them(memory: MetricMemory) -> None:
    """Another version, a reload and the successor of a lost process compute their own."""

    async def scene(frontend: Frontend) -> None:
        async def score_once() -> bytes:
            answered = asyncio.get_running_loop().create_future()
            service = frontend.gateway.directory.find("digits")
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
        assert [await score_once() for _ in range(3)] == [b"[[2.0,4.0]]"] * 3
        assert len(runtimes[0].batches) == 1
        frontend.load(2, 3, runtimes[1], cache_bytes=10_000)
        frontend.route(v3=2)
        assert [await score_once() for _ in range(3)] == [b"[[3.0,6.0]]"] * 3
        cache = frontend.gateway.directory.find("digits").replicas.cache
        assert cache is not None
        assert len(cache) == 1
        frontend.manager.replicas.detach(2)
        assert len(cache) == 0

    play(memory, scene)


def test_readiness_listeners_are_notified_of_each_change(memory: MetricMemory) -> None:
    """Listeners are called when replicas join or leave, versions change and draining begins."""

    async def scene(frontend: Frontend) -> None:
        gateway, seen = frontend.gateway, []
        gateway.readiness.subscribe(
            lambda: seen.append([service.ready for service in gateway.directory.services.values()])
        )
        frontend.load(1, 3)
        assert seen == [[]]
        frontend.route(v3=1)
        assert seen[1:] == [[True]]
        frontend.manager.replicas.detach(1)
        assert seen[2:] == [[False]]
        gateway.readiness.start_draining()
        assert len(seen) == 4

    play(memory, scene)


def test_retire_waits_for_bodies_that_arrive(memory: MetricMemory) -> None:
    """A caller whose body is on its way is answered too, over HTTP and gRPC."""

    async def scene(frontend: Frontend) -> None:
        frontend.load(1, 3)
        frontend.route(v3=1)
        served = frontend.gateway.directory.find("digits")
        served.staging.arriving += 1
        frontend.manager.retire(1)
        frontend.manager.sweep()
        assert frontend.retired == []
        served.staging.arriving -= 1
        frontend.arriving = True
        frontend.manager.sweep()
        assert frontend.retired == []
        frontend.arriving = False
        frontend.manager.sweep()
        assert frontend.retired == [1]

    play(memory, scene)


def test_attach_with_larger_rows_replaces_the_exchange_of_the_generation(memory: MetricMemory) -> None:
    """The last requests of a retiring service may wait for them."""

    async def scene(frontend: Frontend) -> None:
        frontend.load(1, 3)
        frontend.route(v3=1)
        service = frontend.gateway.directory.find("digits")
        (old,) = service.exchanges
        frontend.manager.replicas.request_larger(old, 4096)
        assert frontend.outgrown == [(1, 4096)]
        service.staging.arriving += 1
        frontend.manager.retire(1)
        fd = Arena.create(ROWS, 8)
        near, far = socket.socketpair()
        joined = AttachReplica(1, generation=1, signature=ROWS, capacity_rows=8)
        assert frontend.manager.attach(joined, [fd, near.detach()])
        (new,) = service.exchanges
        assert (new.arena.capacity, old.lost) == (8, False)
        frontend.manager.sweep()
        assert old.lost, "nothing is in it"
        service.staging.arriving -= 1
        frontend.manager.sweep()
        assert (frontend.retired, new.lost, service.exchanges) == ([1], True, [])
        far.close()

    play(memory, scene)


def test_requests_without_a_version_are_divided_by_weights(memory: MetricMemory) -> None:
    """The weights hold exactly; a request that names a version gets it. The fast path has no targets."""

    async def scene(frontend: Frontend) -> None:
        gateway = frontend.gateway
        frontend.load(1, 3)
        frontend.load(2, 7)
        gateway.directory.only = "digits"
        frontend.route(v7=2, v3=1)
        whole = gateway.targets.scoring, gateway.targets.infer
        known = Route("digits", 3, {"next": 7}, _versions(v3=1, v7=2), {"3": 75, "7": 25})
        frontend.manager.route(known)
        default = gateway.directory.service("digits")
        chosen = [gateway.directory.choose_version(default, {}).version for _ in range(5)]
        frontend.manager.route(known)
        chosen += [gateway.directory.choose_version(default, {}).version for _ in range(3)]
        assert chosen == ["3", "3", "7", "3"] * 2, "the sequence goes on where nothing has changed"
        assert (
            gateway.directory.find("digits", "7").version
            == gateway.directory.find("digits", label="next").version
            == "7"
        )
        assert gateway.targets.scoring == {}
        assert sorted(gateway.targets.infer) == [
            b"/v2/models/digits/versions/3/infer",
            b"/v2/models/digits/versions/7/infer",
        ]
        default.access = Access(KeyVerifier(Path("no-keys"), "digits", Keys("k" * 32, "k" * 32)))
        assert gateway.directory.choose_version(default, {}) is default, "who is refused takes no turn"
        frontend.manager.route(Route("digits", 3, {}, _versions(v3=1, v7=2), {"3": 75}))
        assert gateway.directory.split_of(default) is None
        assert (gateway.targets.scoring.keys(), gateway.targets.infer.keys()) == tuple(map(dict.keys, whole))
        assert b'stoker_version_share_ratio{model="digits",version="3"} 1.0' in render(
            memory, gateway.directory.models, gateway.load
        )
        frontend.manager.route(known)
        assert b'stoker_version_share_ratio{model="digits",version="7"} 0.25' in render(
            memory, gateway.directory.models, gateway.load
        )

    play(memory, scene)


def _versions(**numbers: int) -> tuple[RoutedVersion, ...]:
    return tuple(
        RoutedVersion(int(version[1:]), VersionStatus(0, "AVAILABLE"), number)
        for version, number in numbers.items()
    )


async def score(frontend: Frontend, body: bytes) -> int:
    """Score one request, and sweep the services."""
    answered = asyncio.get_running_loop().create_future()
    service = frontend.gateway.directory.find("digits")
    service.score(body, None, lambda status, *_: answered.set_result(status), time.monotonic_ns())
    await asyncio.sleep(0)
    frontend.turn_devices()
    status: int = await answered
    frontend.manager.sweep()
    return status


async def compared(frontend: Frontend, sample: Path | None = None) -> Comparison:
    """Compare the versions 1 and 2."""
    comparing = asyncio.ensure_future(frontend.manager.compared.compare(Compare(0, 1, 2, sample)))
    while not comparing.done():
        frontend.turn_devices()
        await asyncio.sleep(0)
    return await comparing


def test_compare_runs_sampled_requests_through_both_versions(
    memory: MetricMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison has each field; the counters of callers stay as they are."""

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
        frontend.manager.sweep()
        assert (await compared(frontend)).requests == 1, "what runs again is no sample"
        y = comparison.fields["y"]
        assert (y.largest, y.relative, y.classified, y.flipped) == (2.0, 0.5, 1, 1)
        assert len(comparison.old_ns) == len(comparison.new_ns) == 1
        totals = memory.totals()
        assert (totals.model(1).requests()[200], totals.model(2).requests()[200]) == (1, 0)
        assert (totals.model(2).comparisons()["different"], totals.model(2).flips) == (2, 2)

    play(memory, scene)


def test_a_shadow_runs_copies_that_change_no_answer(memory: MetricMemory) -> None:
    """The shadow gets its share of any hundred requests, until its route ends."""

    async def scene(frontend: Frontend) -> None:
        broken = PuppetRuntime(answer=lambda inputs: [inputs[0] * 3])
        broken.fails_for = {9.0}
        frontend.load(1, 3)
        frontend.load(2, 7, broken)
        routed = Route("digits", 3, {"next": 7}, _versions(v3=1, v7=2))
        frontend.manager.route(replace(routed, shadows={"7": 50}))

        async def scored(*numbers: int) -> dict[str, int]:
            for number in numbers:
                assert await score(frontend, b'{"data": [[%d, 2]]}' % number) == 200
            for _ in range(20):
                await asyncio.sleep(0)
                frontend.turn_devices()
            return {
                result: count for result, count in memory.totals().model(2).comparisons().items() if count
            }

        frontend.manager.sweep()
        assert await scored(1, 2, 3, 4) == {"different": 2}
        assert await scored(9, 9) == {"different": 2, "failed": 1}
        assert (memory.totals().model(1).requests()[200], memory.totals().model(2).requests()[200]) == (6, 0)
        frontend.manager.route(routed)
        assert await scored(1, 2, 3, 4) == {"different": 2, "failed": 1}

    play(memory, scene)


def test_compare_without_samples_runs_the_file_if_it_fits(memory: MetricMemory, tmp_path: Path) -> None:
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
        assert (await compared(frontend)).requests == 0, "no samples were kept"
        assert (await compared(frontend, other)).requests == 0
        assert dict((await compared(frontend, fits)).results) == {"failed": 1}

    play(memory, scene)
