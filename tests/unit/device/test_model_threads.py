"""Loading: warm-up, the number of instances, and the threads that make and serve them."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.patience import PATIENCE_S
from tests.pipelined_puppets import PuppetPipeline, PuppetSizes
from tests.puppets import (
    BODIES,
    FAR_NS,
    ROWS,
    HandClock,
    PuppetRuntime,
    double,
    metric_memory,
)
from tests.tiny_models import write_mlp

from stoker.arena import Arena
from stoker.deployment import Deployment, Device
from stoker.device import loading
from stoker.device.batch_sizes import BatchSizes
from stoker.device.canary import Canary
from stoker.device.instance import Instance
from stoker.device.lanes import Lane
from stoker.device.loading import fork, load
from stoker.device.model_threads import ModelThreads
from stoker.device.pipelined_worker import PipelinedWorker
from stoker.device.worker import Worker
from stoker.errors import LoadFailed
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import ModelTotals
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.tensors import Signature

CPU = Device("cpu", 0, "CPU")
GPU = Device("cuda", 0, "GPU", "GPU-1")
MODEL = Deployment("digits", 1, "onnx", Path("model.onnx"), Path(), 8, 1000)


class ForkingPuppet(PuppetRuntime):
    """A model that can be forked; each notes on which threads it was made and has run.

    Attributes:
        made_on: The thread on which it was made.
        ran_on: The threads on which it ran.
        forks: Its forks.
        forks_fail: Whether a fork fails at its first batch.
    """

    def __init__(self, signature: Signature = ROWS) -> None:
        super().__init__(signature, double)
        self.made_on = threading.current_thread().name
        self.ran_on: set[str] = set()
        self.forks: list[ForkingPuppet] = []
        self.forks_fail = False
        self.during = lambda: self.ran_on.add(threading.current_thread().name)

    def fork(self) -> Runtime:
        """A further one."""
        another = ForkingPuppet(self.signature)
        if self.forks_fail:
            another.fails_for = {0}
        another.fits_rows = self.fits_rows
        self.forks.append(another)
        return another


def let_load_find(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    """Let `load` find this runtime."""
    monkeypatch.setattr(loading, "load_runtime", lambda *_: runtime)


def sizes_of(runtime: PuppetRuntime) -> list[int]:
    """How many rows each batch had."""
    return [len(batch) for batch in runtime.batches]


@pytest.mark.parametrize(
    ("device", "buckets", "sizes"),
    [
        (CPU, None, [8, 1, 8]),
        (CPU, (2, 8), [8, 2, 8]),
        (GPU, (3, 8), [8, 3, 8, 3]),
    ],
)
def test_every_size_is_run_once_the_largest_first(
    device: Device, buckets: tuple[int, ...] | None, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller pays for the first batch of a size; a full one is timed once warm; on a GPU the canary follows."""
    runtime = ForkingPuppet()
    let_load_find(monkeypatch, runtime)
    loaded = load(dataclasses.replace(MODEL, batch_buckets=buckets), device)
    assert sizes_of(runtime) == sizes
    assert loaded.max_batch_rows == 8


@pytest.mark.parametrize(
    ("target_ms", "times_ms", "buckets"),
    [
        (None, {1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4}, (1, 2, 4, 8)),
        (None, {1: 1.0, 2: 1.05, 4: 2.08, 8: 4.16}, (1, 2)),
        (2.0, {1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4}, (1, 2, 4)),
    ],
)
def test_on_a_gpu_the_sizes_that_pay_are_chosen_by_timing_them(
    target_ms: float | None,
    times_ms: dict[int, float],
    buckets: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each once it is warm, three times; the log says what was chosen, and why."""
    clock, runtime = HandClock(), ForkingPuppet()
    runtime.during = lambda: clock.advance_ms(times_ms[len(runtime.batches[-1])])
    let_load_find(monkeypatch, runtime)
    caplog.set_level("INFO")
    loaded = load(dataclasses.replace(MODEL, target_ms=target_ms), GPU, clock)
    largest = buckets[-1]
    assert (loaded.sizes, loaded.max_batch_rows) == (BatchSizes(buckets, chosen=True), largest)
    timed = [size for size in (1, 2, 4, 8) for _ in range(3)]
    assert sizes_of(runtime) == [8, 4, 2, 1, *timed, largest, 1]
    assert f"digits: batch_buckets {','.join(map(str, buckets))}: " in caplog.text
    assert ("target_ms 2" in caplog.text) == (target_ms is not None)


class ChosenPuppet(PuppetRuntime):
    """A model that was loaded in one of several ways."""

    choice = "execution bound; graph fused"


@pytest.mark.parametrize(("buckets", "times"), [(None, "1: 1.000, 2: 1.050"), ((2, 8), "2: 1.050, 8: 4.160")])
def test_chosen_execution_is_logged_with_the_time_of_each_size(
    buckets: tuple[int, ...] | None,
    times: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line has the times of the sizes that were set or chosen; on the CPU there is no choice."""
    times_ms = {1: 1.0, 2: 1.05, 4: 2.08, 8: 4.16}
    clock, runtime = HandClock(), ChosenPuppet(ROWS, double)
    runtime.during = lambda: clock.advance_ms(times_ms[len(runtime.batches[-1])])
    let_load_find(monkeypatch, runtime)
    caplog.set_level("INFO")
    model = dataclasses.replace(MODEL, batch_buckets=buckets)
    load(model, CPU, clock)
    assert "execution" not in caplog.text
    load(model, GPU, clock)
    (logged,) = [line for line in caplog.messages if "execution" in line]
    assert logged == f"digits: execution bound; graph fused; ms by rows: {times}"


def test_a_size_that_suddenly_lacks_memory_has_no_time_in_the_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is served, as it is where that happens later."""
    clock, runtime = HandClock(), ChosenPuppet(ROWS, double)
    let_load_find(monkeypatch, runtime)

    def run_out() -> None:
        # Warm batches, of which one is timed as a full one.
        if len(runtime.batches) > 3 and len(runtime.batches[-1]) == 8:
            raise OutOfMemory("no memory")

    runtime.during = run_out
    caplog.set_level("INFO")
    load(dataclasses.replace(MODEL, batch_buckets=(2, 8)), GPU, clock)
    assert "digits: execution bound; graph fused; ms by rows: 2: 0.000" in caplog.messages


def resnet50_ns(rows: int) -> int:
    """ResNet-50 in float16 on an H200."""
    return round(np.interp(rows, [1, 8, 32, 64, 128, 256], [0.581, 1.049, 2.724, 5.155, 10.14, 20.11]) * 1e6)


def test_sizes_are_prepared_one_after_the_other_while_larger_ones_pay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Larger ones than 128 rows are never prepared, and 96 and 128 are forgotten again: 64 are 97 % as good."""
    runtime = PuppetSizes()
    runtime.takes_ns = resnet50_ns
    let_load_find(monkeypatch, runtime)
    caplog.set_level("INFO")
    loaded = load(dataclasses.replace(MODEL, max_batch_rows=256), GPU)
    buckets = (1, 2, 4, 8, 16, 32, 48, 64)
    assert (loaded.sizes.buckets, loaded.max_batch_rows, runtime.sizes) == (buckets, 64, buckets)
    assert runtime.prepared_again == [buckets]
    assert (
        "digits: batch_buckets 1,2,4,8,16,32,48,64: batches of 64 do 12,415 rows/s, of 128 12,623"
        in caplog.text
    )


@pytest.mark.parametrize("failure", [OutOfMemory("no memory"), ValueError("not the same answers")])
def test_a_size_that_cannot_be_prepared_ends_the_search(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model serves in the batches that there are, and the log says why there are no larger ones."""
    runtime = PuppetSizes()
    runtime.takes_ns = resnet50_ns
    runtime.add_fails = {16: failure}
    let_load_find(monkeypatch, runtime)
    loaded = load(dataclasses.replace(MODEL, max_batch_rows=256), GPU)
    assert (loaded.max_batch_rows, runtime.sizes) == (8, (1, 2, 4, 8))
    assert f"digits: batches of 16 rows and more are left out: {failure}" in caplog.text


def test_sizes_that_are_set_are_neither_timed_nor_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept even if they gain nothing."""
    runtime = PuppetSizes()
    runtime.takes_ns, runtime.sizes = resnet50_ns, (1, 128, 256)
    let_load_find(monkeypatch, runtime)
    loaded = load(dataclasses.replace(MODEL, max_batch_rows=256, batch_buckets=(1, 128, 256)), GPU)
    assert (loaded.sizes.buckets, runtime.sizes) == ((1, 128, 256), (1, 128, 256))
    assert runtime.prepared_again == []


def test_first_batches_run_as_often_as_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each size, in each instance; the full batch is timed after them."""
    runtime = ForkingPuppet()
    let_load_find(monkeypatch, runtime)
    loaded = load(dataclasses.replace(MODEL, batch_buckets=(2, 8), warm_up_runs=3), CPU)
    assert sizes_of(runtime) == [8, 8, 8, 2, 2, 2, 8]
    fork(loaded, "digits")
    assert sizes_of(runtime.forks[0]) == [8, 8, 8, 2, 2, 2]


def test_a_model_on_demand_runs_full_batches_at_its_first_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Later one row: what a full batch takes, and how many rows fit, is known of this file with these settings."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a model")
    model = dataclasses.replace(MODEL, path=path, on_demand=True, number=4721)

    def sizes_at_load(fits_rows: int, device: Device = CPU, **settings: Any) -> tuple[list[int], int, float]:
        runtime = ForkingPuppet()
        runtime.fits_rows = fits_rows
        let_load_find(monkeypatch, runtime)
        loaded = load(dataclasses.replace(model, **settings), device)
        return sizes_of(runtime), loaded.max_batch_rows, loaded.full_batch_s

    first = sizes_at_load(5)
    assert first[:2] == ([8, 4, 1, 4], 4)
    assert sizes_at_load(8) == ([1], *first[1:])
    assert sizes_at_load(8, warm_up_runs=2)[0] == [8, 8, 1, 1, 8]
    assert sizes_at_load(8, number=4722)[0] == [8, 1, 8], "its settings may be others"
    assert sizes_at_load(8, GPU, batch_buckets=(8,))[0] == [8, 8, 8], "sizes are prepared for each session"
    assert sizes_at_load(8, number=4722, on_demand=False)[0] == [8, 1, 8]
    path.write_bytes(b"another model")
    assert sizes_at_load(8)[0] == [8, 1, 8]


def test_a_device_without_memory_for_the_largest_batch_gets_smaller_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server starts with what fits, and says so; a fork for which even less is left lowers it for all."""
    runtime = ForkingPuppet()
    runtime.fits_rows = 5
    let_load_find(monkeypatch, runtime)
    loaded = load(dataclasses.replace(MODEL, batch_buckets=(1, 2, 4, 8)), GPU)
    assert loaded.max_batch_rows == 4
    assert "no memory for a batch of 8 rows; max_batch_rows is 4" in caplog.text
    runtime.fits_rows = 2
    _, forked = fork(loaded, "digits")
    assert (forked.max_batch_rows, sizes_of(runtime.forks[0])) == (2, [4, 2, 1])


def test_a_model_that_does_not_fit_at_all_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says that it is the memory."""
    runtime = ForkingPuppet()
    runtime.fits_rows = 0
    let_load_find(monkeypatch, runtime)
    with pytest.raises(LoadFailed, match="no memory for one row of digits"):
        load(MODEL, GPU)


def test_a_model_that_fails_on_zeros_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says at which size."""
    runtime = ForkingPuppet()
    runtime.fails_for = {0}
    let_load_find(monkeypatch, runtime)
    with pytest.raises(LoadFailed, match="digits fails on a batch of 8 rows of zeros"):
        load(MODEL, CPU)


@pytest.mark.parametrize(
    ("wanted", "device", "runtime", "instances"),
    [
        (None, CPU, ForkingPuppet, 1),
        (None, GPU, ForkingPuppet, 2),
        (None, GPU, PuppetRuntime, 1),
        (3, CPU, ForkingPuppet, 3),
        (1, GPU, ForkingPuppet, 1),
        (1, CPU, PuppetRuntime, 1),
    ],
)
def test_how_many_instances_a_model_gets(
    wanted: int | None,
    device: Device,
    runtime: type[PuppetRuntime],
    instances: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two on a GPU, one on the CPU, or the number that is set, if the runtime can be forked."""
    let_load_find(monkeypatch, runtime())
    assert load(dataclasses.replace(MODEL, instances=wanted), device).instances == instances


def test_a_script_cannot_have_several_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to do instead."""
    let_load_find(monkeypatch, PuppetRuntime(BODIES))
    script = dataclasses.replace(MODEL, framework="script", instances=2)
    with pytest.raises(LoadFailed, match=r"cannot have 2 instances: .* set replicas"):
        load(script, CPU)


@pytest.mark.parametrize(
    ("framework", "device", "has_one"), [("onnx", GPU, True), ("onnx", CPU, False), ("script", GPU, False)]
)
def test_frameworks_on_a_gpu_have_a_canary(
    framework: str, device: Device, has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of frameworks have a canary on a GPU; made-up rows may have side effects in a script."""
    let_load_find(monkeypatch, ForkingPuppet())
    loaded = load(dataclasses.replace(MODEL, framework=framework), device)
    assert isinstance(loaded.canary, Canary) is has_one


@contextmanager
def threads_of(
    deployment: Deployment, audit_rate: float = 0.0, *, is_alone: bool = True
) -> Iterator[tuple[ModelThreads, MetricMemory]]:
    """The threads of a model, which are stopped afterwards."""
    memory = metric_memory()
    page = memory.page(64).model(0)
    model = ModelThreads(dataclasses.replace(deployment, audit=audit_rate), page, is_alone=is_alone)
    try:
        yield model, memory
    finally:
        model.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("model digits")]


@pytest.mark.parametrize("is_alone", [True, False])
def test_sizes_are_added_while_serving_only_where_no_other_model_is_served(
    is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA refuses calls of the other models of a process while one captures."""
    runtime = PuppetSizes()
    runtime.takes_ns = resnet50_ns
    let_load_find(monkeypatch, runtime)
    with threads_of(MODEL, is_alone=is_alone) as (model, _):
        model.start(GPU)
        worker = model.worker
        assert isinstance(worker, PipelinedWorker)
        assert (worker._later is not None) == is_alone
        assert tuple(runtime.sizes) == ((1,) if is_alone else (1, 2, 4, 8))
        assert worker.cap.rows == (1 if is_alone else 8)
        assert worker._watch is None


def test_each_instance_lives_on_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made and warmed up on the thread that will serve it: frameworks keep what they prepare by thread."""
    made: list[ForkingPuppet] = []

    def load_runtime(*_: object) -> Runtime:
        made.append(ForkingPuppet())
        return made[0]

    monkeypatch.setattr(loading, "load_runtime", load_runtime)
    with threads_of(dataclasses.replace(MODEL, instances=3)) as (model, memory):
        loaded = model.start(CPU)
        runtimes = [made[0], *made[0].forks]
        names = ["model digits", "model digits (2)", "model digits (3)"]
        assert [runtime.made_on for runtime in runtimes] == names
        assert [runtime.ran_on for runtime in runtimes] == [{name} for name in names]
        assert [sizes_of(runtime) for runtime in runtimes] == [[8, 1, 8], [8, 1], [8, 1]]
        assert loaded.instances == 3
        totals: ModelTotals = memory.totals().model(0)
        assert totals.batch_cap_rows == 8
        assert memory.capacities_rows_s()[0] > 0, (
            "a server that has not been asked anything knows what it can do"
        )


def test_a_model_with_batches_in_flight_has_one_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded on the thread that plans, with its times known before the first row; another thread completes."""
    runtime = PuppetPipeline()
    runtime.takes_ns = lambda size: size * 1_000_000
    let_load_find(monkeypatch, runtime)
    with threads_of(dataclasses.replace(MODEL, instances=3, batch_buckets=(1, 8))) as (model, memory):
        loaded = model.start(GPU)
        assert loaded.instances == 1
        assert loaded.full_batch_s == pytest.approx(0.008)
        worker = model.worker
        assert isinstance(worker, PipelinedWorker)
        assert [worker.times.mean_ns(size) for size in (1, 8)] == [1_000_000, 8_000_000]
        assert memory.batch_times(0) == {8: (8.0, pytest.approx(0.008))}
        model.serve()
        names = {thread.name for thread in threading.enumerate()}
        assert "model digits" in names
        assert answer_of(model, 1.5) == [3.0, 3.0]
    assert not runtime.flights
    assert not runtime.attached


def answer_of(model: ModelThreads, number: float, signature: Signature = ROWS) -> list[float]:
    """Submit a row to a model that serves, and wait for its answer."""
    fd = Arena.create(signature, 1)
    near, far = socket.socketpair()
    near.settimeout(PATIENCE_S)
    arena = Arena(fd, signature, 1)
    arena.inputs[0][0] = number
    arena.queued[0, :2] = FAR_NS, time.monotonic_ns()
    with near:
        model.add_lane(Lane(Arena(fd, signature, 1), far))
        os.close(fd)
        near.send(np.array([0], np.uint32).tobytes())
        assert near.recv(4) == bytes(4)
    answer: list[float] = arena.outputs[0][0].tolist()
    return answer


@pytest.mark.usefixtures("no_collections")
def test_unloaded_cpu_model_is_freed_without_a_collection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A collection would stop all other models of the process; its session holds its memory."""
    path = write_mlp(tmp_path / "model.onnx")
    sessions: list[weakref.ref[onnxruntime.InferenceSession]] = []
    open_session = OnnxSessions.open

    def open_and_note(opener: OnnxSessions) -> onnxruntime.InferenceSession:
        session = open_session(opener)
        sessions.append(weakref.ref(session))
        return session

    monkeypatch.setattr(OnnxSessions, "open", open_and_note)
    with threads_of(dataclasses.replace(MODEL, path=path, model_dir=tmp_path)) as (model, _):
        signature = model.start(CPU).signature
        model.serve()
        answer_of(model, 1.0, signature)
        assert [session() is not None for session in sessions] == [True]
    del model
    assert [session() for session in sessions] == [None]


def test_the_planner_knows_the_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can fill buckets instead of padding batches."""
    let_load_find(monkeypatch, ForkingPuppet())
    with threads_of(dataclasses.replace(MODEL, batch_buckets=(3, 8))) as (model, _):
        model.start(GPU)
        assert model.worker is not None
        assert model.worker.cap.policy.buckets == (3, 8)


def test_a_model_with_a_target_is_timed_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its planner knows the target and the times of batches."""
    runtime = ForkingPuppet()
    let_load_find(monkeypatch, runtime)
    deployment = dataclasses.replace(MODEL, target_ms=20, late="refuse")
    with threads_of(deployment) as (model, _):
        model.start(CPU)
        assert model.worker is not None
        policy = model.worker.cap.policy
        assert (policy.target_ms, policy.late) == (20, "refuse")
        assert sizes_of(runtime)[-12:] == [size for size in (1, 2, 4, 8) for _ in range(3)]
        assert model.worker.times.expected_ns(8) > 0


@pytest.mark.parametrize(
    ("framework", "rate", "batched", "audited"),
    [
        ("onnx", 0.1, True, True),
        ("onnx", 0, True, False),
        ("onnx", 0.1, False, False),
        ("script", 1, True, False),
    ],
)
def test_batched_framework_models_are_audited(
    framework: str, rate: float, batched: bool, audited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batched models are audited, except scripts, whose `run` may have side effects."""
    isolation = RowIsolation(batched, "declared", "it says so")
    let_load_find(monkeypatch, PuppetRuntime(dataclasses.replace(ROWS, isolation=isolation)))
    with threads_of(dataclasses.replace(MODEL, framework=framework), rate) as (model, memory):
        model.start(CPU)
        assert model.worker is not None
        assert (model.worker.auditor is not None) == audited
        model.stop_batching()
        assert memory.totals().model(0).batch_cap_rows == 1


def test_no_instance_serves_before_serve_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary must not meet another model of the process that captures a CUDA graph."""
    allowed: list[bool] = []
    begins, served = threading.Event(), threading.Barrier(3)

    def serve(_: Worker, instance: Instance | None = None) -> None:
        allowed.append(begins.is_set())
        served.wait(PATIENCE_S)

    monkeypatch.setattr(Worker, "serve", serve)
    let_load_find(monkeypatch, ForkingPuppet())
    with threads_of(dataclasses.replace(MODEL, instances=2)) as (model, _):
        model.start(GPU)
        begins.set()
        model.serve()
        served.wait(PATIENCE_S)
    assert allowed == [True, True]


def test_a_fork_that_fails_fails_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is left behind."""
    runtime = ForkingPuppet()
    runtime.forks_fail = True
    let_load_find(monkeypatch, runtime)
    model = ModelThreads(dataclasses.replace(MODEL, instances=2), metric_memory().page(64).model(0))
    with pytest.raises(LoadFailed, match="fails on a batch of 8 rows"):
        model.start(CPU)
    for thread in threading.enumerate():
        if thread.name.startswith("model digits"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
