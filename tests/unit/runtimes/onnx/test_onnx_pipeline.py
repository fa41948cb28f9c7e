"""Batches in flight on a GPU: the order of copies and computations; CUDA and sessions are puppets.

The puppet's streams do nothing until a thread waits for them or, if they are `eager`, as much as they can. Data that
are used or overwritten too early give wrong answers.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.cuda_puppets import DOUBLES, PuppetCudart, PuppetSession

from stoker.arena import Arena
from stoker.runtimes.base import BufferedRuntime, OutOfMemory, PipelinedRuntime, SizedRuntime
from stoker.runtimes.cuda import CudaError, CudaRuntime
from stoker.runtimes.onnx.capture import SessionGraphs
from stoker.runtimes.pipeline import CapturedBatch, PipelinedExecution

MS = 1_000_000
CAPACITY = 64
SIZES = (1, 2, 4, 8)


class PuppetSessions:
    """A session for all sizes, or one for each.

    Attributes:
        opened: The open session of each size.
        most_rows: The rows that fit into the memory of a session, by size.
        working_bytes: The device's memory of a session until its last size is closed.
    """

    def __init__(self, cudart: PuppetCudart, *, each: bool = False) -> None:
        self.cudart = cudart
        self.each = each
        self.shares_memory = not each
        self.opened: dict[int, PuppetSession] = {}
        self.most_rows: dict[int, int] = {}
        self.factor = 2.0
        self.graph_ns = MS
        self.working_bytes = 0
        self._memory = 0

    def open(self, rows: int, stream: int) -> Any:
        if rows not in self.opened:
            known = None if self.each else next(iter(self.opened.values()), None)
            self.opened[rows] = known or self._new(rows, stream)
        return self.opened[rows]

    def close(self, rows: int) -> None:
        del self.opened[rows]
        if not self.opened and self._memory:
            CudaRuntime(self.cudart).device_free(self._memory)
            self._memory = 0

    def _new(self, rows: int, stream: int) -> PuppetSession:
        if self.working_bytes:
            self._memory = CudaRuntime(self.cudart).device_alloc(self.working_bytes)
        session = PuppetSession(self.cudart, self.most_rows.get(rows, 1 << 20), self.factor)
        session.stream, session.rows = stream, rows if self.each else None
        session.times_ns["graph"] = self.graph_ns
        return session


class Bench:
    """A runtime on a puppet of a GPU, and arenas whose rows are all different."""

    def __init__(self, *, each: bool = False, depth: int = 2, sizes: tuple[int, ...] = SIZES) -> None:
        self.cudart = PuppetCudart()
        self.sessions = PuppetSessions(self.cudart, each=each)
        self.depth, self.sizes = depth, sizes

    def load(self) -> PipelinedExecution:
        cuda = CudaRuntime(self.cudart)
        graphs = SessionGraphs(self.sessions)
        runtime = PipelinedExecution(
            "doubler", DOUBLES, cuda, graphs, self.sizes, 8, self.depth, lambda: len(self.cudart.calls)
        )
        self.arenas = [self.new_arena(1000 * number) for number in (1, 2)]
        for arena in self.arenas:
            runtime.attach(arena)
        self.cudart.calls.clear()
        return runtime

    def new_arena(self, first: int) -> Arena:
        fd = Arena.create(DOUBLES, CAPACITY)
        try:
            arena = Arena(fd, DOUBLES, CAPACITY)
        finally:
            os.close(fd)
        arena.inputs[0][...] = first + np.arange(3 * CAPACITY).reshape(CAPACITY, 3)
        return arena

    def blocks(self, *numbers: list[int]) -> list[tuple[Arena, np.ndarray]]:
        return [(arena, np.array(rows, np.int32)) for arena, rows in zip(self.arenas, numbers, strict=False)]

    def expected(self, size: int, *numbers: list[int]) -> list[list[float]]:
        rows = [row for arena, own in self.blocks(*numbers) for row in (2 * arena.inputs[0][own]).tolist()]
        return rows + [[0.0] * 3] * (size - len(rows))


def streams_ahead(bench: Bench) -> list[set[int]]:
    """Return the choices of streams that run ahead: none, each alone, two of them, all."""
    first, second, third = sorted(bench.cudart.queues)
    return [set(), {first}, {second}, {third}, {second, third}, {first, second, third}]


def answer(batch: CapturedBatch) -> list[list[float]]:
    """Return the answers of a batch, and release it."""
    (output,) = batch.result()
    rows: list[list[float]] = output.tolist()
    batch.release()
    return rows


def test_pipeline_has_the_protocols_of_the_device_process() -> None:
    """It has batches in flight and changing sizes, and no buffers, which may hold rows of other batches."""
    runtime = Bench().load()
    assert isinstance(runtime, PipelinedRuntime)
    assert isinstance(runtime, SizedRuntime)
    assert not isinstance(runtime, BufferedRuntime)
    assert (tuple(runtime.sizes), runtime.depth) == (SIZES, 2)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("ahead", range(6))
def test_batches_in_flight_give_the_answers_of_their_own_rows(ahead: int, each: bool) -> None:
    """Each copy and computation waits for its data, also if other streams run ahead."""
    bench = Bench(each=each)
    runtime = bench.load()
    bench.cudart.eager = streams_ahead(bench)[ahead]
    wanted = [([3, 4, 5], [7]), ([9, 1], []), ([0], [5, 6]), ([2], []), ([8, 9, 10, 11], [1, 2, 3, 4])]
    waiting: list[tuple[CapturedBatch, list[list[float]]]] = []
    for numbers in wanted:
        rows = sum(map(len, numbers))
        size = next(size for size in SIZES if size >= rows)
        if len(waiting) == 2:
            batch, expected = waiting.pop(0)
            assert answer(batch) == expected
        waiting.append((runtime.begin(bench.blocks(*numbers), rows, size), bench.expected(size, *numbers)))
    for batch, expected in waiting:
        assert answer(batch) == expected


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_begins_and_ends_gives_the_answers_of_single_batches(seed: int) -> None:
    """Sizes, rows, arenas, depth and the streams that run ahead at random; answers stay valid until the release."""
    random = np.random.default_rng(seed)
    bench = Bench(each=bool(seed % 2), depth=int(random.integers(1, 4)))
    runtime = bench.load()
    bench.cudart.eager = streams_ahead(bench)[int(random.integers(6))]
    held: list[tuple[CapturedBatch, list[list[float]], Any]] = []
    for _ in range(60):
        if len(held) < runtime.depth and random.random() < 0.6:
            rows = int(random.integers(1, 9))
            split = int(random.integers(rows + 1))
            picked = random.permutation(CAPACITY)[:rows].tolist()
            size = int(random.choice([size for size in SIZES if size >= rows]))
            numbers = picked[:split], picked[split:]
            batch = runtime.begin(bench.blocks(*numbers), rows, size)
            held.append((batch, bench.expected(size, *numbers), None))
        elif held:
            place = int(random.integers(len(held)))
            batch, expected, output = held.pop(place)
            if output is None:
                (output,) = batch.result()
            assert output.tolist() == expected
            if random.random() < 0.5:
                batch.release()
            else:
                held.insert(place, (batch, expected, output))


def test_batch_keeps_its_memory_until_it_is_released() -> None:
    """The next batches use other sets; without a free set none begins."""
    bench = Bench(depth=2)
    runtime = bench.load()
    first = runtime.begin(bench.blocks([1]), 1, 1)
    (kept,) = first.result()
    for number in (2, 3, 4):
        assert answer(runtime.begin(bench.blocks([number]), 1, 1)) == bench.expected(1, [number])
    second = runtime.begin(bench.blocks([5]), 1, 1)
    with pytest.raises(IndexError):
        runtime.begin(bench.blocks([6]), 1, 1)
    assert answer(second) == bench.expected(1, [5])
    assert kept.tolist() == bench.expected(1, [1])


def test_the_first_runs_of_a_model_are_on_zeros() -> None:
    """Other contents of the memory could be indices out of range."""
    bench = Bench()
    seen: set[float] = set()
    compute = PuppetSession.compute

    def noted(session: PuppetSession, binding: Any, number: int) -> None:
        shape, address = binding.bound["x"]
        seen.update(np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape).flat)
        compute(session, binding, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PuppetSession, "compute", noted)
        runtime = bench.load()
        runtime.computed_ns(8)
    assert seen == {0.0}
    assert not any(any(memory.raw) for memory in bench.cudart.device.values())


def test_padding_is_cleared() -> None:
    """Rows of an earlier batch of the same set are cleared, once; also those of `run`."""
    bench = Bench(depth=1)
    runtime = bench.load()
    assert answer(runtime.begin(bench.blocks([0, 1, 2, 3]), 4, 4)) == bench.expected(4, [0, 1, 2, 3])
    assert answer(runtime.begin(bench.blocks([9]), 1, 4)) == bench.expected(4, [9])
    assert answer(runtime.begin(bench.blocks([8]), 1, 8)) == bench.expected(8, [8])
    runtime.run([np.ones((8, 3), np.float32)])
    assert answer(runtime.begin(bench.blocks([7, 6]), 2, 8)) == bench.expected(8, [7, 6])


def test_the_time_of_a_batch_is_that_of_the_computation_alone() -> None:
    """A batch that waits for another one is not slower for it."""
    bench = Bench()
    runtime = bench.load()
    batches = [runtime.begin(bench.blocks([number]), 1, 1) for number in (1, 2)]
    bench.cudart.clock[0] += 50 * MS
    for batch in batches:
        batch.result()
        assert batch.computed_ns == MS


def test_the_time_of_a_batch_is_read_while_its_outputs_are_copied() -> None:
    """A batch that is asked whether it is done knows its time before it is."""
    bench = Bench()
    runtime = bench.load()
    batch = runtime.begin(bench.blocks([1]), 1, 1)
    mark = bench.cudart.mark_of(batch._set.computed)
    bench.cudart.finish(mark.stream, mark)
    assert not batch.is_done()
    assert batch.computed_ns == MS
    bench.cudart.finish(mark.stream)
    assert batch.is_done()
    assert answer(batch) == bench.expected(1, [1])


def test_is_done_does_not_wait() -> None:
    """CUDA's code for "not ready" does not stay as an error."""
    bench = Bench()
    runtime = bench.load()
    batch = runtime.begin(bench.blocks([1]), 1, 1)
    cleared = bench.cudart.cleared
    assert not batch.is_done()
    assert bench.cudart.cleared == cleared + 1
    batch.result()
    assert batch.is_done()


def test_capture_of_another_model_does_not_affect_threads() -> None:
    """Threads that begin batches, or wait for them, set their capture mode once."""
    bench = Bench()
    runtime = bench.load()
    results: list[Any] = []

    def wait() -> None:
        for batch in batches:
            batch.is_done()
            results.append(answer(batch))

    batches = [runtime.begin(bench.blocks([number]), 1, 1) for number in (1, 2)]
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert results == [bench.expected(1, [number]) for number in (1, 2)]
    assert bench.cudart.calm_threads == [threading.get_ident(), thread.ident]


def test_a_lone_batch_is_begun_with_few_calls() -> None:
    """There is no overlap, and one stream needs no events between copies and computation."""
    bench = Bench()
    runtime = bench.load()
    compute = min(bench.cudart.queues)
    lone = runtime.begin(bench.blocks([1]), 1, 1)
    assert {stream for stream, queue in bench.cudart.queues.items() if queue} == {compute}
    other = runtime.begin(bench.blocks([2]), 1, 1)
    assert all(bench.cudart.queues.values())
    assert (answer(lone), answer(other)) == (bench.expected(1, [1]), bench.expected(1, [2]))


def test_a_copy_that_cuda_refuses_fails_its_batch_alone() -> None:
    """`begin` does not raise; batches before and after are answered."""
    bench = Bench()
    runtime = bench.load()
    before = runtime.begin(bench.blocks([1]), 1, 1)
    bench.cudart.failing["cudaMemcpyAsync"] = 1
    failed = runtime.begin(bench.blocks([2]), 1, 1)
    bench.cudart.failing.clear()
    assert failed.is_done()
    with pytest.raises(CudaError, match="cudaMemcpyAsync: CUDA error 1, invalid argument"):
        failed.result()
    failed.release()
    assert answer(before) == bench.expected(1, [1])
    assert answer(runtime.begin(bench.blocks([3]), 1, 2)) == bench.expected(2, [3])


def test_copies_of_a_failed_batch_end_before_its_set_is_used_again() -> None:
    """A copy that had begun before the failure would overwrite the next batch's rows, in another stream."""
    bench = Bench()
    runtime = bench.load()
    before = runtime.begin(bench.blocks([1]), 1, 1)
    bench.cudart.failing["cudaEventRecord"] = 1
    failed = runtime.begin(bench.blocks([2]), 1, 1)
    bench.cudart.failing.clear()
    assert not any(bench.cudart.queues.values())
    with pytest.raises(CudaError, match="cudaEventRecord"):
        failed.result()
    failed.release()
    assert answer(before) == bench.expected(1, [1])


@pytest.mark.parametrize("kind", ["to_device", "run", "to_host"])
def test_late_device_failure_is_raised_by_the_result(kind: str) -> None:
    """The failed batch and each later one raise: after such an error CUDA computes nothing any more."""
    bench = Bench()
    runtime = bench.load()
    batches = [runtime.begin(bench.blocks([number]), 1, 1) for number in (1, 2)]
    bench.cudart.breaks[kind] = 700
    for batch in batches:
        with pytest.raises(CudaError, match="CUDA error 700, an illegal memory access"):
            batch.result()
        assert batch.is_done()
        batch.release()
    with pytest.raises(CudaError, match="CUDA error 700"):
        runtime.begin(bench.blocks([3]), 1, 1).result()


def test_memory_that_a_replay_lacks_is_out_of_memory() -> None:
    """The worker then tries the batch in parts."""
    bench = Bench(each=True)
    runtime = bench.load()
    bench.sessions.opened[4].most_rows = 3
    batch = runtime.begin(bench.blocks([1, 2, 3]), 3, 4)
    with pytest.raises(OutOfMemory, match="requested buffer"):
        batch.result()
    batch.release()
    assert answer(runtime.begin(bench.blocks([1, 2]), 2, 2)) == bench.expected(2, [1, 2])


def test_sizes_without_memory_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Their batches run as the next larger size; those above the largest are out of memory."""
    bench = Bench(each=True, sizes=(1, 2, 4, 8))
    bench.sessions.most_rows = {8: 7, 2: 1}
    runtime = bench.load()
    assert tuple(runtime.sizes) == (1, 4)
    assert "doubler: the device has no memory to prepare batches of 2 rows" in caplog.text
    assert answer(runtime.begin(bench.blocks([3, 4]), 2, 2)) == bench.expected(2, [3, 4])
    with pytest.raises(OutOfMemory, match="no memory to prepare batches of 8 rows"):
        runtime.run([np.ones((8, 3), np.float32)])
    assert sorted(bench.sessions.opened) == [1, 4]


def test_a_device_without_memory_for_any_size_is_out_of_memory() -> None:
    """The load then chooses another execution."""
    bench = Bench(each=True, sizes=(1,))
    bench.sessions.most_rows = {1: 0}
    with pytest.raises(OutOfMemory, match="requested buffer"):
        bench.load()


def test_an_arena_is_detached_when_no_batch_reads_it() -> None:
    """Batches of the other arena continue; the puppet fails for reads of a detached one."""
    bench = Bench()
    runtime = bench.load()
    registered = len(bench.cudart.registered)
    batch = runtime.begin(bench.blocks([1], [2]), 2, 2)
    assert answer(batch) == bench.expected(2, [1], [2])
    runtime.detach(bench.arenas[0])
    assert registered == 0 or len(bench.cudart.registered) == registered - 1
    assert answer(runtime.begin(bench.blocks([], [3])[1:], 1, 1)) == bench.expected(1, [], [3])


def test_batches_are_run_one_by_one_too() -> None:
    """Of any number of rows; the answers are those of these rows alone, whatever batches in flight have left."""
    bench = Bench()
    runtime = bench.load()
    for rows in (1, 3, 8, 5):
        inputs = np.random.default_rng(rows).random((rows, 3), np.float32)
        assert runtime.run([inputs])[0].tolist() == (2 * inputs).tolist()
        assert answer(runtime.begin(bench.blocks([1, 2, 3]), 3, 4)) == bench.expected(4, [1, 2, 3])


@pytest.mark.parametrize("each", [False, True])
def test_a_size_is_added_and_removed(each: bool) -> None:
    """It is measured. A removed size closes its session, and its batches run as the next larger size."""
    bench = Bench(each=each, sizes=(1, 8))
    runtime = bench.load()
    runtime.open_size(4)
    assert runtime.add_size(4) == MS
    assert tuple(runtime.sizes) == (1, 4, 8)
    assert answer(runtime.begin(bench.blocks([1, 2, 3]), 3, 4)) == bench.expected(4, [1, 2, 3])
    runtime.remove_size(4)
    assert (tuple(runtime.sizes), sorted(bench.sessions.opened)) == ((1, 8), [1, 8])
    assert answer(runtime.begin(bench.blocks([1, 2, 3]), 3, 4)) == bench.expected(4, [1, 2, 3])


def test_a_size_that_gives_other_answers_is_not_added() -> None:
    """Each size has a graph of its own, and one may be wrong."""
    bench = Bench(each=True, sizes=(1, 2))
    runtime = bench.load()
    bench.sessions.factor = 2.1
    with pytest.raises(ValueError, match=r"outputs in batches of 8 rows differ by 0\.0\d+ from those of 2"):
        runtime.add_size(8)
    assert (tuple(runtime.sizes), sorted(bench.sessions.opened)) == ((1, 2), [1, 2])


def test_sessions_of_one_size_are_not_opened_again_for_memory() -> None:
    """The memory of a removed size is freed with its session."""
    bench = Bench(each=True)
    runtime = bench.load()
    runtime.remove_size(8)
    before = dict(bench.sessions.opened)
    runtime.prepare_again()
    assert bench.sessions.opened == before


@pytest.mark.parametrize(("working_bytes", "again"), [(1 << 19, True), (1 << 14, False)])
def test_all_sizes_are_prepared_again_where_memory_is_scarce(working_bytes: int, again: bool) -> None:
    """The largest is first, in new sessions; the old graphs are released."""
    bench = Bench()
    bench.sessions.working_bytes = working_bytes
    runtime = bench.load()
    (old,) = set(bench.sessions.opened.values())
    runtime.remove_size(8)
    runtime.prepare_again()
    (new,) = set(bench.sessions.opened.values())
    assert (new is not old, old.graphs == {}) == (again, again)
    captured = [call[1] for call in bench.cudart.calls if call[0] == "run"]
    assert captured == ([4, 4, 2, 2, 1, 1] if again else [])
    assert answer(runtime.begin(bench.blocks([1, 2, 3]), 3, 4)) == bench.expected(4, [1, 2, 3])


class OnTheCpu:
    """A real session of the CPU that computes where the puppet's stream has come to it.

    Attributes:
        options: Of each run, by the names of ONNX Runtime.
    """

    def __init__(self, path: Path, cudart: PuppetCudart, stream: int) -> None:
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.cudart, self.stream = cudart, stream
        self.options: list[tuple[int, bool]] = []

    def io_binding(self) -> Any:
        real: Any = self.session.io_binding()

        def bind(method: str) -> Any:
            return lambda name, kind, *rest: getattr(real, method)(name, {"cuda": "cpu"}[kind], *rest)

        return SimpleNamespace(
            _iobinding=real._iobinding, bind_input=bind("bind_input"), bind_output=bind("bind_output")
        )

    @property
    def _sess(self) -> Any:
        return SimpleNamespace(run_with_iobinding=self.run_inside)

    def run_inside(self, binding: Any, options: Any) -> None:
        """Run the inner session and binding of the package."""
        number = int(options.get_run_config_entry("gpu_graph_id"))
        try:
            waits = options.get_run_config_entry("disable_synchronize_execution_providers") != "1"
        except RuntimeError:
            waits = True
        self.options.append((number, waits))
        inner: Any = self.session
        self.cudart.enqueue(self.stream, "run", lambda: inner._sess.run_with_iobinding(binding, options))
        if waits:
            self.cudart.finish(self.stream)

    def release_captured_graph(self, number: int) -> None:
        self.session.release_captured_graph(number)


def test_real_onnx_runtime_accepts_the_calls(tmp_path: Path) -> None:
    """The calls have names, types, shapes, addresses and options as for a GPU."""
    path = tmp_path / "doubler.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubler", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    bench = Bench(depth=2, sizes=(2, 4))
    opened: list[OnTheCpu] = []

    def open_session(rows: int, stream: int) -> Any:
        opened.extend([OnTheCpu(path, bench.cudart, stream)] if not opened else [])
        return opened[0]

    sessions: Any = SimpleNamespace(open=open_session, close=lambda _: None, shares_memory=True)
    bench.sessions = sessions
    runtime = bench.load()
    (session,) = opened
    numbers = [number for number, waits in session.options if waits]
    assert len(set(numbers)) == len(numbers) == 4
    assert min(numbers) > 0
    batches = [runtime.begin(bench.blocks([number]), 1, 2) for number in (1, 2)]
    assert [answer(batch) for batch in batches] == [bench.expected(2, [number]) for number in (1, 2)]
    assert session.options[4:] == [(numbers[2], False), (numbers[3], False)]
    runtime.remove_size(2)


def test_unloaded_onnx_pipeline_frees_its_cuda_resources() -> None:
    """Memory, streams and events are freed."""
    bench = Bench()
    runtime = bench.load()
    assert bench.cudart.events == 8
    del runtime
    assert (bench.cudart.device, bench.cudart.host, bench.cudart.streams, bench.cudart.events) == (
        {},
        {},
        0,
        0,
    )
