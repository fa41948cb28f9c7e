"""Puppets of a GPU: a CUDA runtime whose device memory is this process's, and a session that computes in it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.cuda_ipc_puppets import PuppetLibrary, pointee

from stoker.tensors import Signature, TensorSpec

__all__ = [
    "DOUBLES",
    "NO_MEMORY",
    "PuppetBinding",
    "PuppetCudart",
    "PuppetRows",
    "PuppetSession",
    "address_of",
    "copies_of_batch",
]

DOUBLES = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (3,)),))
"""Of the puppets: y = 2 x."""

NO_MEMORY = "Failed to allocate memory for requested buffer of size 4096"


def address_of(array: np.ndarray) -> int:
    """Where the first element of an array lies."""
    return int(array.ctypes.data)


def copies_of_batch(to: int, sources: int, sizes: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Yield target, source and size of each copy, given the addresses of these columns, as CUDA is."""
    columns = [(ctypes.c_uint64 * count).from_address(address) for address in (to, sources, sizes)]
    return zip(*columns, strict=True)


@dataclass(eq=False)
class PuppetMark:
    """One record of an event: whether its stream has come to it, and when."""

    stream: int
    passed: bool = False
    at_ns: int = 0


@dataclass(eq=False)
class PuppetTask:
    """Something in a stream.

    Attributes:
        run: Does it.
        reads: The memory of the host that it reads, as address and size.
        after: Of a wait: what must have come to pass.
    """

    run: Callable[[], None]
    reads: tuple[int, int] = (0, 0)
    after: PuppetMark | None = None


class PuppetCudart(PuppetLibrary):
    """`libcudart`, as far as it is used, with streams that do nothing before somebody waits for them.

    So what is looked at too early is what was there before, and what is overwritten too early is lost. A stream of
    `eager` does all it can at once: what was to wait for another one and does not comes too early.

    Attributes:
        calls: What was called, in order.
        limit_bytes: How much device memory there is.
        eager: Streams that run ahead of all others.
        clock: The time in ns, which sessions advance.
        version: That of the library.
        registered: The size of host memory that is registered, by its address.
        calm_threads: Those whose calls no capture of another thread forbids.
        breaks: By a kind of task, `to_device`, `to_host` or `run`, the error that the next one ends in; after it CUDA
            does nothing any more.
    """

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.limit_bytes = limit_bytes
        self.host: dict[int, Any] = {}
        self.device: dict[int, Any] = {}
        self.queues: dict[int, deque[PuppetTask]] = {}
        self.eager: set[int] = set()
        self.clock = [0]
        self.version = 13000
        self.registered: dict[int, int] = {}
        self.breaks: dict[str, int] = {}
        self.broken = 0
        self.cleared = 0
        self.calm_threads: list[int] = []
        self._marks: dict[int, PuppetMark | None] = {}
        self._made = 0
        super().__init__(
            *(name.removeprefix("_") for name in dir(PuppetCudart) if name.startswith("_cuda")),
        )

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self.queues)

    @property
    def events(self) -> int:
        """How many events there are."""
        return len(self._marks)

    def enqueue(
        self, stream: int, kind: str, work: Callable[[], None], reads: tuple[int, int] = (0, 0)
    ) -> None:
        """Put work into a stream."""

        def run() -> None:
            if kind in self.breaks:
                self.broken = self.breaks.pop(kind)
            if not self.broken:
                work()

        self._put(stream, PuppetTask(run, reads))

    def finish(self, stream: int, mark: PuppetMark | None = None) -> None:
        """Do what is in a stream, up to a mark or all of it, and what it waits for in others."""
        queue = self.queues[stream]
        while queue and not (mark is not None and mark.passed):
            task = queue.popleft()
            if task.after is not None and not task.after.passed:
                self.finish(task.after.stream, task.after)
            task.run()

    def mark_of(self, event: int) -> PuppetMark:
        """The last record of an event."""
        mark = self._marks[event]
        assert mark is not None, "it was recorded"
        return mark

    def _put(self, stream: int, task: PuppetTask) -> None:
        self.queues[stream].append(task)
        moved = True
        while moved:
            moved = False
            for number in self.eager:
                queue = self.queues[number]
                while queue and (queue[0].after is None or queue[0].after.passed):
                    queue.popleft().run()
                    moved = True

    def _is_pinned(self, address: int, size: int) -> bool:
        pinned = [*((begin, len(memory)) for begin, memory in self.host.items()), *self.registered.items()]
        return any(begin <= address and address + size <= begin + length for begin, length in pinned)

    def _cudaRuntimeGetVersion(self, out: Any) -> None:  # noqa: N802
        pointee(out).value = self.version

    def _cudaHostAlloc(self, out: Any, size: int, flags: int) -> None:  # noqa: N802
        memory = ctypes.create_string_buffer(b"\xff" * size, size)
        pointee(out).value = ctypes.addressof(memory)
        self.host[pointee(out).value] = memory
        self.calls.append(("host_alloc", size, flags))

    def _cudaFreeHost(self, address: int) -> None:  # noqa: N802
        del self.host[address]

    def _cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert address % mmap.PAGESIZE == 0
        assert address not in self.registered
        self.registered[address] = size
        return 0

    def _cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        end = address + self.registered.pop(address)
        tasks = [task for queue in self.queues.values() for task in queue]
        assert not any(address <= task.reads[0] < end for task in tasks), "memory that is still read"
        return 0

    def _cudaMalloc(self, out: Any, size: int) -> int:  # noqa: N802
        if sum(map(len, self.device.values())) + size > self.limit_bytes:
            return 2
        memory = ctypes.create_string_buffer(b"\xee" * size, size)
        pointee(out).value = ctypes.addressof(memory)
        self.device[pointee(out).value] = memory
        return 0

    def _cudaFree(self, address: int) -> None:  # noqa: N802
        del self.device[address]

    def _cudaMemGetInfo(self, free: Any, total: Any) -> None:  # noqa: N802
        pointee(free).value = self.limit_bytes - sum(map(len, self.device.values()))
        pointee(total).value = self.limit_bytes

    def _cudaStreamCreateWithFlags(self, out: Any, flags: int) -> None:  # noqa: N802
        assert flags == 1, "a blocking stream would wait for all others"
        self._made += 1
        pointee(out).value = 0x5000 + self._made
        self.queues[pointee(out).value] = deque()

    def _cudaStreamDestroy(self, stream: int) -> None:  # noqa: N802
        del self.queues[stream]

    def _cudaStreamSynchronize(self, stream: int) -> int:  # noqa: N802
        self.calls.append(("synchronize",))
        self.finish(stream)
        return self.broken

    def _cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> int:  # noqa: N802
        name = "to_device" if kind == 1 else "to_host"
        self.calls.append((name, to, source, size))
        if self.broken:
            return self.broken
        if kind == 1 and not self._is_pinned(source, size):
            # CUDA reads memory that is not pinned before it returns.
            content = ctypes.string_at(source, size)
            self.enqueue(stream, name, lambda: _write(to, content))
        else:
            reads = (source, size) if kind == 1 else (0, 0)
            self.enqueue(stream, name, lambda: _write(to, ctypes.string_at(source, size)), reads)
        return 0

    def _cudaMemcpyBatchAsync(  # noqa: N802
        self,
        to: int,
        sources: int,
        sizes: int,
        count: int,
        attributes: Any,
        first: Any,
        attributes_count: int,
        stream: int,
    ) -> int:
        assert (pointee(attributes).source_access_order, pointee(first).value, attributes_count) == (1, 0, 1)
        assert ctypes.sizeof(pointee(attributes)) == 24
        self.calls.append(("batch_to_device", count))
        for target, source, size in copies_of_batch(to, sources, sizes, count):
            assert self._is_pinned(source, size)
            work = partial(lambda *copy: _write(copy[0], ctypes.string_at(*copy[1:])), target, source, size)
            self.enqueue(stream, "to_device", work, (source, size))
        return self.broken

    def _cudaMemsetAsync(self, to: int, value: int, size: int, stream: int) -> int:  # noqa: N802
        self.enqueue(stream, "fill", lambda: ctypes.memset(to, value, size) and None)
        return self.broken

    def _cudaEventCreateWithFlags(self, out: Any, flags: int) -> None:  # noqa: N802
        assert flags in (1, 3), "who waits for it would keep a core busy"
        self._made += 1
        pointee(out).value = 0x9000 + self._made
        self._marks[pointee(out).value] = None

    def _cudaEventDestroy(self, event: int) -> None:  # noqa: N802
        del self._marks[event]

    def _cudaEventRecord(self, event: int, stream: int) -> int:  # noqa: N802
        mark = self._marks[event] = PuppetMark(stream)

        def pass_by() -> None:
            mark.passed, mark.at_ns = True, self.clock[0]

        self._put(stream, PuppetTask(pass_by))
        return self.broken

    def _cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:  # noqa: N802
        assert flags == 0
        self._put(stream, PuppetTask(lambda: None, after=self._marks[event]))

    def _cudaEventQuery(self, event: int) -> int:  # noqa: N802
        mark = self._marks[event]
        return self.broken or (0 if mark is None or mark.passed else 600)

    def _cudaEventSynchronize(self, event: int) -> int:  # noqa: N802
        mark = self._marks[event]
        if mark is not None:
            self.finish(mark.stream, mark)
        return self.broken

    def _cudaEventElapsedTime(self, out: Any, start: int, end: int) -> int:  # noqa: N802
        marks = self._marks[start], self._marks[end]
        pointee(out).value = (marks[1].at_ns - marks[0].at_ns) / 1e6  # type: ignore[union-attr]
        return self.broken

    def _cudaThreadExchangeStreamCaptureMode(self, mode: Any) -> None:  # noqa: N802
        assert mode._obj.value == 1
        self.calm_threads.append(threading.get_ident())

    def _cudaGetLastError(self) -> None:  # noqa: N802
        self.cleared += 1

    def _cudaGetErrorString(self, code: int) -> bytes:  # noqa: N802
        return {
            1: b"invalid argument",
            2: b"out of memory",
            700: b"an illegal memory access was encountered",
            801: b"operation not supported",
        }[code]


def _write(to: int, content: bytes) -> None:
    ctypes.memmove(to, content, len(content))


@dataclass
class PuppetBinding:
    """The bound arrays by name: shape and address."""

    bound: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        assert (device_type, device_id, np.dtype(element_type)) == ("cuda", 0, np.dtype(np.float32))
        self.bound[name] = tuple(shape), buffer_ptr

    bind_output = bind_input


class PuppetSession:
    """y = 2 x of float32 rows, at the addresses that are bound. A captured graph repeats itself.

    Attributes:
        cudart: Told of each run, so that the order of copies and runs shows.
        graphs: By id what was bound when it was captured.
        most_rows: More of them do not fit into the memory.
        factor: What it multiplies by; other than 2 is wrong.
        failure: What it raises instead.
        times_ns: What a run takes: plain, bound, and as a graph; by `clock`.
        stream: Where its graphs run; None if that is not said.
        rows: The one size that it takes; None for any.
    """

    def __init__(self, cudart: PuppetCudart, most_rows: int = 1 << 20, factor: float = 2) -> None:
        self.cudart = cudart
        self.most_rows = most_rows
        self.factor = factor
        self.failure: Exception | None = None
        self.clock = cudart.clock
        self.times_ns = {"plain": 0, "bound": 0, "graph": 0}
        self.graphs: dict[int, PuppetBinding] = {}
        self.plain_runs: list[int] = []
        self.stream: int | None = None
        self.rows: int | None = None

    def io_binding(self) -> PuppetBinding:
        return PuppetBinding()

    def run(
        self, names: Sequence[str], feeds: dict[str, np.ndarray], options: Any = None
    ) -> list[np.ndarray]:
        self.plain_runs.append(_graph_id(options))
        self.clock[0] += self.times_ns["plain"]
        self._check_rows(len(feeds["x"]))
        return [feeds["x"] * np.float32(self.factor)]

    def run_with_iobinding(self, binding: PuppetBinding, options: Any = None) -> None:
        rows = binding.bound["x"][0][0]
        self._check_rows(rows)
        number = _graph_id(options)
        self.cudart.calls.append(("run", rows, number))
        waits = _entry(options, "disable_synchronize_execution_providers") != "1"
        if number > 0:
            assert waits or number in self.graphs, "a graph is waited for while it is captured"
            binding = self.graphs.setdefault(number, binding)
        if self.stream is None:
            self.compute(binding, number)
            return
        self.cudart.enqueue(self.stream, "run", lambda: self.compute(binding, number))
        if waits:
            self.cudart.finish(self.stream)

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider"]

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x", shape=["rows", 3])]

    def release_captured_graph(self, number: int) -> None:
        self.graphs.pop(number, None)

    def compute(self, binding: PuppetBinding, number: int) -> None:
        self.clock[0] += self.times_ns["graph" if number > 0 else "bound"]
        (shape, address), (_, target) = binding.bound["x"], binding.bound["y"]
        values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)
        np.ctypeslib.as_array(ctypes.cast(target, ctypes.POINTER(ctypes.c_float)), shape)[...] = (
            values * self.factor
        )

    def _check_rows(self, rows: int) -> None:
        if self.failure is not None:
            raise self.failure
        if rows > self.most_rows:
            raise Fail(NO_MEMORY)
        assert self.rows in (None, rows), "another size than that of the session"


def _graph_id(options: Any) -> int:
    return int(_entry(options, "gpu_graph_id") or 0)


def _entry(options: Any, key: str) -> str:
    try:
        return "" if options is None else str(options.get_run_config_entry(key))
    except RuntimeError:
        return ""


class PuppetRows(SimpleNamespace):
    """A runtime that takes a fixed time by a hand clock."""

    signature = DOUBLES

    def __init__(self, clock: list[int], times_ns: dict[int, int], factor: float = 2) -> None:
        super().__init__(clock=clock, times_ns=times_ns, factor=factor)

    def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        self.clock[0] += self.times_ns[len(inputs[0])]
        return [inputs[0] * np.float32(self.factor)]
