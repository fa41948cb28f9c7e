"""Copies of rows to the GPU: straight from registered arenas, or gathered; CUDA is a puppet."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from tests.cuda_puppets import PuppetCudart

from stoker.arena import Arena
from stoker.runtimes import row_copies
from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.pinned_memory import StagedTensor
from stoker.runtimes.row_copies import CopyTimes, RegisteredRows, RowCopies
from stoker.tensors import Signature, TensorSpec

MS = 1_000_000
CAPACITY = 16
ROWS = 6


class Bench:
    """One input of 1,024 float32, its memory of a batch, and the two arenas of two frontends.

    Attributes:
        costs_ns: What a call takes: one from the `gathered` rows, one `straight` from an arena, or one for a `batch`.
    """

    def __init__(self, costs_ns: dict[str, int], *, version: int = 13000, refusing: bool = False) -> None:
        self.cudart = PuppetCudart(1 << 24)
        self.cudart.version = version
        if refusing:
            self.cudart.failing["cudaHostRegister"] = 801
        self.cuda = CudaRuntime(self.cudart)
        self.signature = Signature((TensorSpec("x", "float32", (1024,)),), (TensorSpec("y", "float32", ()),))
        self.staged = StagedTensor(self.cuda, self.signature.inputs[0], ROWS)
        self.stream = self.cuda.create_stream()
        self.costs_ns = costs_ns
        self.copies = RowCopies("model", self.cuda, self.stream, [self.staged], self.clock_ns)
        self.arenas = [self.new_arena(seed) for seed in (1, 2)]

    def clock_ns(self) -> int:
        return sum(map(self.cost_ns, self.cudart.calls))

    def cost_ns(self, call: tuple[object, ...]) -> int:
        if call[0] == "to_device":
            return self.costs_ns["gathered" if call[2] == self.staged.host_address else "straight"]
        return self.costs_ns.get("batch", 0) if call[0] == "batch_to_device" else 0

    def new_arena(self, seed: int) -> Arena:
        fd = Arena.create(self.signature, CAPACITY)
        try:
            arena = Arena(fd, self.signature, CAPACITY)
        finally:
            os.close(fd)
        arena.inputs[0][...] = np.random.default_rng(seed).random((CAPACITY, 1024), np.float32)
        return arena

    def send(self, *numbers: list[int]) -> list[tuple[object, ...]]:
        """Copy rows of the arenas, check that they arrive, and return the calls."""
        blocks = [(arena, np.array(own, np.int32)) for arena, own in zip(self.arenas, numbers, strict=False)]
        rows = sum(map(len, numbers))
        self.cudart.calls.clear()
        self.copies.send(0, self.staged, blocks, rows, self.stream)
        calls = list(self.cudart.calls)
        self.cuda.synchronize(self.stream)
        expected = np.concatenate([arena.inputs[0][own] for arena, own in blocks])
        arrived = bytes(self.cudart.device[self.staged.device_address])[: expected.nbytes]
        assert arrived == expected.tobytes()
        return calls


STRAIGHT = {"batch": MS, "straight": MS, "gathered": 10 * MS}
GATHERED = {"batch": 50 * MS, "straight": 50 * MS, "gathered": 10 * MS}


def test_rows_are_copied_straight_if_that_is_cheaper() -> None:
    """One call begins the copies of all runs of adjacent rows, of several arenas."""
    bench = Bench(STRAIGHT)
    for arena in bench.arenas:
        bench.copies.attach(arena)
    assert [call[0] for call in bench.send([3, 9, 4], [0, 15])] == ["batch_to_device"]
    (call,) = bench.send([3, 4, 5, 6])
    assert (call[0], call[3]) == ("to_device", 4 * 4096)
    (call,) = bench.send([9])
    assert (call[0], call[3]) == ("to_device", 4096)


def test_adjacent_rows_are_one_copy_without_batched_calls() -> None:
    """The library is older, or one call for all is slower; rows of two arenas are never adjacent."""
    for bench in (
        Bench(STRAIGHT | {"gathered": 90 * MS}, version=12080),
        Bench(STRAIGHT | {"batch": 9 * MS}),
    ):
        for arena in bench.arenas:
            bench.copies.attach(arena)
        calls = bench.send([3, 4, 9, 10], [11, 12])
        assert [(call[0], call[3]) for call in calls] == [("to_device", 2 * 4096)] * 3


def test_rows_are_gathered_if_that_is_cheaper() -> None:
    """The arena is not registered, and one copy has all rows."""
    bench = Bench(GATHERED)
    for arena in bench.arenas:
        bench.copies.attach(arena)
    assert bench.cudart.registered == {}
    (call,) = bench.send([3, 9, 4], [0, 15])
    assert (call[0], call[2]) == ("to_device", bench.staged.host_address)


def test_rows_of_an_arena_that_is_not_registered_are_gathered(caplog: pytest.LogCaptureFixture) -> None:
    """Rows of a registered arena beside them are gathered too; the log has the reason."""
    caplog.set_level("INFO")
    bench = Bench(STRAIGHT)
    bench.copies.attach(bench.arenas[0])
    bench.cudart.failing["cudaHostRegister"] = 801
    bench.copies.attach(bench.arenas[1])
    assert "rows are gathered before they are copied: cudaHostRegister: CUDA error 801" in caplog.text
    assert [call[0] for call in bench.send([1, 5])] == ["batch_to_device"]
    (call,) = bench.send([1, 5], [2])
    assert (call[0], call[2]) == ("to_device", bench.staged.host_address)


def test_rows_are_gathered_if_the_system_refuses_to_register(caplog: pytest.LogCaptureFixture) -> None:
    """The load finds it, and no arena is tried again."""
    caplog.set_level("INFO")
    bench = Bench(STRAIGHT, refusing=True)
    bench.cudart.failing.clear()
    bench.copies.attach(bench.arenas[0])
    assert bench.cudart.registered == {}
    assert bench.send([3, 1])[0][0] == "to_device"
    assert "operation not supported" in caplog.text


def test_copies_that_arrive_changed_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The load finds a library with other arguments, before the first row of a caller."""
    caplog.set_level("INFO")

    class Shifting(PuppetCudart):
        def _cudaMemcpyBatchAsync(self, to: int, sources: int, sizes: int, count: int, *rest: object) -> int:  # noqa: N802
            self.calls.append(("batch_to_device", count))
            return 0

    bench = Bench(STRAIGHT)
    cudart = Shifting(1 << 24)
    cuda = CudaRuntime(cudart)
    staged = StagedTensor(cuda, bench.signature.inputs[0], ROWS)
    copies = RowCopies("model", cuda, cuda.create_stream(), [staged], lambda: len(cudart.calls))
    assert "straight copies are left out: rows arrived changed" in caplog.text
    copies.attach(bench.arenas[0])
    cudart.calls.clear()
    copies.send(0, staged, [(bench.arenas[0], np.array([1, 3]))], 2, cuda.create_stream())
    assert "batch_to_device" not in {call[0] for call in cudart.calls}


def test_a_detached_arena_is_released() -> None:
    """Its pages are unregistered; a second detachment does nothing."""
    bench = Bench(STRAIGHT)
    bench.copies.attach(bench.arenas[0])
    assert len(bench.cudart.registered) == 1
    bench.copies.detach(bench.arenas[0])
    assert bench.cudart.registered == {}
    bench.copies.detach(bench.arenas[0])


@pytest.fixture
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces of four rows."""
    monkeypatch.setattr(row_copies, "_PIECE_BYTES", 4 * 4096)


@pytest.mark.usefixtures("_short_pieces")
def test_rows_are_registered_at_their_first_use() -> None:
    """Pieces are registered; no copy crosses the end of one, also for adjacent rows."""
    bench = Bench(STRAIGHT, version=12080)
    bench.copies.attach(bench.arenas[0])
    assert list(bench.cudart.registered.values()) == [4 * 4096]
    assert [call[3] for call in bench.send([2, 3])] == [2 * 4096]
    assert len(bench.cudart.registered) == 1
    assert [call[3] for call in bench.send([2, 3, 4, 5])] == [2 * 4096, 2 * 4096]
    assert len(bench.cudart.registered) == 2
    assert [call[3] for call in bench.send([15])] == [4096]
    assert len(bench.cudart.registered) == 3
    bench.copies.detach(bench.arenas[0])
    assert bench.cudart.registered == {}


@pytest.mark.usefixtures("_short_pieces")
def test_refused_piece_ends_straight_copies_of_its_arena() -> None:
    """Pieces that a batch in flight reads stay registered until the arena is detached."""
    bench = Bench(STRAIGHT)
    bench.copies.attach(bench.arenas[0])
    first = [(bench.arenas[0], np.array([1, 3]))]
    bench.copies.send(0, bench.staged, first, 2, bench.stream)
    bench.cudart.failing["cudaHostRegister"] = 801
    (call,) = bench.send([9, 5])
    assert (call[0], call[2]) == ("to_device", bench.staged.host_address)
    bench.cudart.failing.clear()
    (call,) = bench.send([1, 3])
    assert (call[0], call[2]) == ("to_device", bench.staged.host_address)
    assert len(bench.cudart.registered) == 1


def test_piece_has_whole_rows_and_pages() -> None:
    """Rows have any size."""
    cudart = PuppetCudart()
    spec = TensorSpec("x", "uint8", (150528,))
    signature = Signature((spec,), (TensorSpec("y", "float32", ()),))
    fd = Arena.create(signature, 400)
    try:
        rows = Arena(fd, signature, 400).inputs[0]
    finally:
        os.close(fd)
    registered = RegisteredRows(CudaRuntime(cudart), rows)
    (size,) = cudart.registered.values()
    assert size % (4 * 150528) == 0
    assert (16 << 20) <= size < (16 << 20) + 4 * 150528
    assert registered.pieces(np.array([0, size // 150528 - 1, size // 150528])).tolist() == [0, 0, 1]
    registered.pieces(np.array([399]))
    assert sum(cudart.registered.values()) <= -(-rows.nbytes // 4096) * 4096
    registered.release()
    assert cudart.registered == {}


def test_time_of_a_copy_is_that_of_the_cheaper_kind(caplog: pytest.LogCaptureFixture) -> None:
    """It never falls with more rows; the log has both kinds at DEBUG."""
    caplog.set_level("DEBUG")
    bench = Bench(STRAIGHT)
    times = [bench.copies.copy_ns(rows) for rows in range(ROWS + 1)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(times))
    assert times[ROWS] == MS
    assert (
        "model: x: rows of 4096 bytes are copied straight from the arenas, 6 of them in 1.000 ms"
        in caplog.text
    )
    assert "model: x: 6 rows: gathered and copied 10.000 ms, straight 1.000 ms" in caplog.text


def test_times_beyond_the_measured_sizes_are_extrapolated() -> None:
    """Batches of hundreds of megabytes are not copied at the load."""
    times = CopyTimes([0, 5, 9], [1, 4, 10])
    assert [times.copy_ns(rows) for rows in range(3)] == [0, 4, 9]
    assert [times.is_straight(rows) for rows in range(3)] == [False, True, False]
