"""The execution of a model of PyTorch on a GPU, and its batches; PyTorch and CUDA are puppets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES, PuppetCudart, PuppetRows
from tests.torch_puppets import PuppetTorch

from stoker.arena import Arena
from stoker.deployment import Deployment
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.cuda import CudaError, CudaRuntime
from stoker.runtimes.pipeline import CapturedBatch, PipelinedExecution
from stoker.runtimes.torch.cuda import cuda_runtime
from stoker.settings.choices import Acceleration

SIZES = (1, 2, 4, 8)
CAPACITY = 64


class Machine:
    """A GPU with PyTorch, and an arena of different rows."""

    def __init__(self) -> None:
        self.cudart = PuppetCudart()
        self.torch = PuppetTorch(self.cudart)
        self.plain = PuppetRows([0], dict.fromkeys(range(9), 0))
        self.limits: dict[str, tuple[int, int]] = {}

    def load(
        self, buckets: tuple[int, ...] | None = SIZES, instances: int | None = None, **settings: Any
    ) -> Runtime:
        path = Path("net.pt2")
        deployment = Deployment(
            "doubler",
            1,
            "torch",
            path,
            path.parent,
            8,
            1024,
            batch_buckets=buckets,
            instances=instances,
            acceleration=Acceleration(**settings),
        )
        return cuda_runtime(
            self.torch,
            deployment,
            self.torch.compute,
            self.plain,
            self.limits,
            lambda: CudaRuntime(self.cudart),
            lambda: len(self.cudart.calls),
        )

    def pipeline(self, **how: Any) -> PipelinedExecution:
        runtime = self.load(**how)
        assert isinstance(runtime, PipelinedExecution)
        fd = Arena.create(DOUBLES, CAPACITY)
        try:
            self.arena = Arena(fd, DOUBLES, CAPACITY)
        finally:
            os.close(fd)
        self.arena.inputs[0][...] = np.arange(3 * CAPACITY).reshape(CAPACITY, 3)
        runtime.attach(self.arena)
        return runtime

    def begin(self, runtime: PipelinedExecution, *numbers: int, size: int) -> CapturedBatch:
        return runtime.begin([(self.arena, np.array(numbers, np.int32))], len(numbers), size)

    def expected(self, *numbers: int, size: int) -> list[list[float]]:
        rows: list[list[float]] = (2 * self.arena.inputs[0][list(numbers)]).tolist()
        return rows + [[0.0] * 3] * (size - len(rows))


@pytest.fixture
def machine() -> Machine:
    return Machine()


def answer(batch: CapturedBatch) -> list[list[float]]:
    (output,) = batch.result()
    rows: list[list[float]] = output.tolist()
    batch.release()
    return rows


@pytest.mark.parametrize("execution", ["graph", "eager"])
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_begins_and_ends_gives_the_answers_of_single_batches(execution: str, seed: int) -> None:
    """Sizes, rows, depth and the streams that run ahead are random."""
    machine = Machine()
    machine.torch.refuses_capture = execution == "eager"
    random = np.random.default_rng(seed)
    runtime = machine.pipeline(instances=int(random.integers(1, 4)))
    assert runtime.choice == f"execution {execution}, {runtime.depth} batches in flight"
    streams = sorted(machine.cudart.queues)[-3:]
    machine.cudart.eager = set(random.permutation(streams)[: int(random.integers(4))].tolist())
    held: list[tuple[CapturedBatch, list[list[float]]]] = []
    for _ in range(60):
        if len(held) < runtime.depth and random.random() < 0.6:
            numbers = random.permutation(CAPACITY)[: int(random.integers(1, 9))].tolist()
            size = int(random.choice([size for size in SIZES if size >= len(numbers)]))
            held.append((machine.begin(runtime, *numbers, size=size), machine.expected(*numbers, size=size)))
        elif held:
            batch, expected = held.pop(0)
            assert answer(batch) == expected
    assert (machine.torch.replays > 0) == (execution == "graph")


def test_batch_only_replays_a_graph(machine: Machine) -> None:
    """The model's code does not run again; its graphs share a pool, after a small capture in another one."""
    runtime = machine.pipeline()
    computed = len(machine.torch.computed)
    assert machine.torch.computed[0] == 1
    assert answer(machine.begin(runtime, 3, 4, size=2)) == machine.expected(3, 4, size=2)
    assert len(machine.torch.computed) == computed
    assert sorted(machine.torch.pools.values()) == [1, 2 * len(SIZES)]


@pytest.mark.parametrize("alone", [False, True])
def test_number_out_of_range_does_not_reach_the_device(machine: Machine, *, alone: bool) -> None:
    """The batch is refused before the copy, and the next one is right; plain runs refuse it too."""
    machine.limits = {DOUBLES.inputs[0].name: (0, 3 * 40)}
    runtime = machine.pipeline()
    before = len(machine.torch.computed), machine.torch.replays
    if alone:
        with pytest.raises(InvalidInput, match="from 0 to 120"):
            runtime.run([machine.arena.inputs[0][50:52]])
    else:
        batch = machine.begin(runtime, 3, 50, size=2)
        with pytest.raises(InvalidInput, match="from 0 to 120"):
            batch.result()
        batch.release()
    assert (len(machine.torch.computed), machine.torch.replays) == before
    assert answer(machine.begin(runtime, 3, 4, size=2)) == machine.expected(3, 4, size=2)


def test_a_model_that_does_not_take_padding_is_not_captured(machine: Machine) -> None:
    """Batches are filled up with zeros, which would break the device."""
    machine.limits = {DOUBLES.inputs[0].name: (1, 120)}
    assert machine.load() is machine.plain


def test_model_that_cannot_be_captured_is_logged_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its kernels are launched one by one in the same pipeline; only the smallest size is tried."""
    caplog.set_level("INFO")
    machine.torch.refuses_capture = True
    machine.pipeline()
    assert [line for line in caplog.messages if "left out" in line] == [
        "doubler: execution graph is left out: CUDA error: operation not permitted when stream is capturing"
    ]
    assert len(machine.torch.spoilt) == 1
    assert machine.torch.computed[:5] == [1, 1, 1, 1, 8]


def test_execution_graph_is_used_or_fails(machine: Machine) -> None:
    """`copied` means plain calls."""
    assert machine.load(execution="copied") is machine.plain
    machine.torch.refuses_capture = True
    with pytest.raises(LoadFailed, match=r"doubler cannot run with execution: graph: CUDA error: operation"):
        machine.load(execution="graph")


def test_graph_with_other_answers_is_left_out(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """For example, Python has read a number of a tensor during the capture."""
    caplog.set_level("INFO")
    machine.torch.factor = lambda captured: 3 if captured else 2
    runtime = machine.pipeline()
    assert runtime.choice.startswith("execution eager")
    assert "execution graph is left out: its outputs for 1 rows differ by 0.5" in caplog.text
    machine.torch.factor = lambda _: 3
    assert machine.load() is machine.plain


def test_a_device_that_the_attempt_has_broken_fails_the_load(machine: Machine) -> None:
    """After an illegal access plain calls fail too."""
    machine.torch.refuses_capture = True

    def broken(_: Any) -> Any:
        raise CudaError("CUDA error 700")

    machine.plain.run = broken
    with pytest.raises(LoadFailed, match=r"since execution graph was tried .*not even plain calls succeed"):
        machine.load()


def test_sizes_are_added_removed_and_prepared_again(machine: Machine) -> None:
    """The last removed size frees the pool; the next size has another one."""
    runtime = machine.pipeline(buckets=None)
    assert tuple(runtime.sizes) == (1,)
    runtime.add_size(4)
    assert answer(machine.begin(runtime, 5, 6, size=4)) == machine.expected(5, 6, size=4)
    emptied = machine.torch.emptied
    for size in (1, 4):
        runtime.remove_size(size)
    assert set(machine.torch.pools.values()) == {0, 1}
    assert machine.torch.emptied == emptied + 1
    runtime.add_size(2)
    assert answer(machine.begin(runtime, 7, size=2)) == machine.expected(7, size=2)


def test_a_size_without_memory_is_left_out(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """The pool in which it failed is not used again; further sizes that do not fit are out of memory."""
    machine.torch.most_rows = 4
    runtime = machine.pipeline()
    assert tuple(runtime.sizes) == (1, 2, 4)
    assert "no memory to prepare batches of 8 rows: CUDA out of memory" in caplog.text
    with pytest.raises(OutOfMemory, match="Tried to allocate"):
        runtime.add_size(6)
    assert answer(machine.begin(runtime, 1, 2, 3, size=4)) == machine.expected(1, 2, 3, size=4)


def test_memory_that_an_eager_batch_lacks_is_out_of_memory(machine: Machine) -> None:
    """The worker then tries the batch in parts; other errors do not change."""
    machine.torch.refuses_capture = True
    runtime = machine.pipeline()
    machine.torch.most_rows = 1
    batch = machine.begin(runtime, 1, 2, size=2)
    with pytest.raises(OutOfMemory, match="Tried to allocate"):
        batch.result()
    batch.release()
    assert answer(machine.begin(runtime, 3, size=1)) == machine.expected(3, size=1)


def test_a_replay_that_fails_fails_its_batch_alone(machine: Machine) -> None:
    """The next one is answered."""
    runtime = machine.pipeline()
    machine.torch.run_fails = RuntimeError("CUDA error: unspecified launch failure")
    batch = machine.begin(runtime, 1, size=1)
    machine.torch.run_fails = None
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        batch.result()
    batch.release()
    assert answer(machine.begin(runtime, 2, size=1)) == machine.expected(2, size=1)


def test_unloaded_torch_pipeline_frees_its_cuda_resources(machine: Machine) -> None:
    """Memory, streams and events are freed, also those of a pipeline that was not used."""
    machine.torch.refuses_capture = True
    runtime: Any = machine.load()
    assert machine.cudart.events == 8
    del runtime
    cudart = machine.cudart
    assert (cudart.device, cudart.host, cudart.streams, cudart.events) == ({}, {}, 0, 0)
