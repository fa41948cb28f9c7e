"""Copies of rows from the arenas to the GPU: straight from their places, or gathered in pinned memory first.

Straight copies save a copy by the CPU, but need a call of the driver for each run of adjacent rows, and arenas that
are registered with CUDA. The cheaper kind depends on the size of a row and on the machine, so both are measured when
the model is loaded.
"""

from __future__ import annotations

import logging
import math
import mmap
import statistics
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from stoker.arena import Arena, gather
from stoker.runtimes.cuda import CudaError, CudaRuntime
from stoker.runtimes.pinned_memory import StagedTensor

logger = logging.getLogger(__name__)

Blocks = Sequence[tuple[Arena, np.ndarray]]
"""Arenas, with the numbers of the rows in each."""

_RUNS: Final = 5
_MEASURED_BYTES: Final = 64 << 20
"""Larger batches are not measured: their times are extrapolated from the last two measured ones."""
_PIECE_BYTES: Final = 16 << 20
"""The least bytes of rows to register at once, which takes a millisecond."""


def begin_copies(
    cuda: CudaRuntime,
    staged: StagedTensor,
    sources: np.ndarray,
    pieces: np.ndarray,
    stream: int,
    *,
    in_batches: bool,
) -> None:
    """Begin one copy for each run of adjacent rows of one piece.

    Args:
        sources: The address of each row, `uint64[rows]`.
        pieces: The number of the registered piece of each row.
        in_batches: Whether one call begins all copies.
    """
    row_bytes = staged.row_bytes
    starts = np.flatnonzero((np.diff(sources) != row_bytes) | (np.diff(pieces) != 0)) + 1
    firsts = np.concatenate(([0], starts)).astype(np.uint64)
    sizes = np.diff(firsts, append=np.uint64(len(sources))) * np.uint64(row_bytes)
    targets = firsts * np.uint64(row_bytes) + np.uint64(staged.device_address)
    begins = sources[firsts.astype(np.int64)]
    if in_batches and len(firsts) > 1:
        cuda.copy_batch_to_device(targets, begins, sizes, stream)
        return
    for target, source, size in zip(targets.tolist(), begins.tolist(), sizes.tolist(), strict=True):
        cuda.copy_to_device(target, source, size, stream)


class CopyTimes(Struct, frozen=True):
    """The times to copy a batch of one input.

    Attributes:
        gathered_ns: The times of gathered copies, by rows from 0 on.
        straight_ns: The times of straight copies; None if they are impossible.
        in_batches: Whether one call begins all straight copies.
    """

    gathered_ns: Sequence[int]
    straight_ns: Sequence[int] | None = None
    in_batches: bool = False

    def is_straight(self, rows: int) -> bool:
        """Whether `rows` rows of registered arenas are copied straight."""
        return self.straight_ns is not None and self.straight_ns[rows] < self.gathered_ns[rows]

    def copy_ns(self, rows: int) -> int:
        """Return the time of the cheaper kind of copy."""
        return (
            self.straight_ns[rows] if self.straight_ns and self.is_straight(rows) else self.gathered_ns[rows]
        )


class RegisteredRows:
    """The rows of one input of an arena, registered with CUDA in pieces, as they are used.

    Frontends use the same few rows repeatedly, and registered pages take memory. A piece has whole rows and whole
    pages, so that no copy crosses its end.

    Attributes:
        is_refused: Whether the system has refused a piece.
    """

    def __init__(self, cuda: CudaRuntime, rows: np.ndarray) -> None:
        """Register the first piece; raise CudaError if the system refuses."""
        self.address: int = rows.ctypes.data
        self.is_refused = False
        self._cuda = cuda
        self._row_bytes = row_bytes = rows.strides[0]
        self._size_bytes = _whole_pages(rows.nbytes)
        together = mmap.PAGESIZE // math.gcd(row_bytes, mmap.PAGESIZE)
        self._piece_rows = together * -(-_PIECE_BYTES // (together * row_bytes))
        self._is_registered = np.zeros(-(-len(rows) // self._piece_rows), bool)
        self._register(0)

    def pieces(self, numbers: np.ndarray) -> np.ndarray:
        """Register the pieces of rows and return their numbers; raise CudaError if the system refuses."""
        pieces: np.ndarray = numbers // self._piece_rows
        if not self._is_registered[pieces].all():
            for piece in np.unique(pieces[~self._is_registered[pieces]]).tolist():
                self._register(piece)
        return pieces

    def release(self) -> None:
        """Unregister all pieces, which no copy reads any more."""
        for piece, is_registered in enumerate(self._is_registered.tolist()):
            if is_registered:
                self._cuda.unregister_host(self.address + piece * self._piece_rows * self._row_bytes)
        self._is_registered[:] = False

    def _register(self, piece: int) -> None:
        begin = piece * self._piece_rows * self._row_bytes
        size_bytes = min(self._piece_rows * self._row_bytes, self._size_bytes - begin)
        self._cuda.register_host(self.address + begin, size_bytes)
        self._is_registered[piece] = True


class RowCopies:
    """Copies rows of a model's inputs to the GPU, each input by the cheaper kind of copy."""

    def __init__(
        self,
        name: str,
        cuda: CudaRuntime,
        stream: int,
        inputs: Sequence[StagedTensor],
        clock_ns: Callable[[], int],
    ) -> None:
        """Measure both kinds of copies.

        Args:
            name: The name of the model for the log.
            stream: A stream in which nothing else runs.
            inputs: The memory of one batch for the measurement.
        """
        self._name = name
        self._cuda = cuda
        self._registered: dict[Arena, dict[int, RegisteredRows]] = {}
        self._times = [self._measure(staged, stream, clock_ns) for staged in inputs]
        each = [[times.copy_ns(rows) for rows in range(len(times.gathered_ns))] for times in self._times]
        self._copy_ns: list[int] = [sum(times) for times in zip(*each, strict=True)]

    def attach(self, arena: Arena) -> None:
        """Register rows of an arena for each input that is copied straight; others are gathered."""
        registered: dict[int, RegisteredRows] = {}
        self._registered[arena] = registered
        for index, times in enumerate(self._times):
            if any(times.is_straight(rows) for rows in range(1, len(times.gathered_ns))):
                try:
                    registered[index] = RegisteredRows(self._cuda, arena.inputs[index])
                except CudaError as error:
                    self._log_refusal(error)

    def detach(self, arena: Arena) -> None:
        """Release an arena, which no copy reads any more."""
        for rows in self._registered.pop(arena, {}).values():
            rows.release()

    def copy_ns(self, rows: int) -> int:
        """Return the time to copy `rows` rows of all inputs."""
        return self._copy_ns[rows]

    def send(self, index: int, staged: StagedTensor, blocks: Blocks, rows: int, stream: int) -> None:
        """Begin the copy of an input's rows to the GPU.

        Args:
            index: The number of the input.
            staged: Its memory of a batch, which nothing else uses.
        """
        if self._times[index].is_straight(rows) and self._try_straight(index, staged, blocks, stream):
            return
        gather(blocks, index, staged.host)
        self._cuda.copy_to_device(staged.device_address, staged.host_address, rows * staged.row_bytes, stream)

    def _try_straight(self, index: int, staged: StagedTensor, blocks: Blocks, stream: int) -> bool:
        """Begin straight copies; return False if a row is not registered."""
        sources, pieces = [], []
        for arena, numbers in blocks:
            registered = self._registered.get(arena, {}).get(index)
            if registered is None or registered.is_refused:
                return False
            try:
                pieces.append(registered.pieces(numbers))
            except CudaError as error:
                # The registered pieces stay: batches in flight may read them.
                registered.is_refused = True
                self._log_refusal(error)
                return False
            sources.append(registered.address + numbers.astype(np.uint64) * staged.row_bytes)
        if len(sources) > 1:
            joined = np.concatenate(sources)
            self._send_straight(index, staged, joined, np.concatenate(pieces), stream)
        else:
            self._send_straight(index, staged, sources[0], pieces[0], stream)
        return True

    def _send_straight(
        self, index: int, staged: StagedTensor, sources: np.ndarray, pieces: np.ndarray, stream: int
    ) -> None:
        if len(sources) == 1:
            self._cuda.copy_to_device(staged.device_address, int(sources[0]), staged.row_bytes, stream)
        else:
            begin_copies(
                self._cuda, staged, sources, pieces, stream, in_batches=self._times[index].in_batches
            )

    def _log_refusal(self, error: CudaError) -> None:
        logger.info("%s: rows are gathered before they are copied: %s", self._name, error)

    def _measure(self, staged: StagedTensor, stream: int, clock_ns: Callable[[], int]) -> CopyTimes:
        rows, row_bytes = len(staged.host), staged.row_bytes
        if not row_bytes:
            return CopyTimes([0] * (rows + 1))
        most = max(1, min(rows, _MEASURED_BYTES // (2 * row_bytes)))
        counts = sorted({1, max(1, most // 4), most})
        # With twice as many rows no two rows of a batch are adjacent: the worst case for straight copies.
        memory = mmap.mmap(-1, _whole_pages(2 * most * row_bytes))
        content = np.frombuffer(memory, np.uint8, 2 * most * row_bytes).reshape(2 * most, row_bytes)
        content[...] = (np.arange(2 * most) % 251)[:, None]
        places = np.frombuffer(memory, staged.dtype, content.nbytes // staged.dtype.itemsize)
        scattered = places.reshape(2 * most, *staged.shape)

        def gather(count: int) -> None:
            scattered.take(np.arange(2 * count - 1, 0, -2), axis=0, out=staged.host[:count], mode="clip")
            self._cuda.copy_to_device(staged.device_address, staged.host_address, count * row_bytes, stream)

        timer = _Timer(self._cuda, stream, clock_ns)
        gathered = _line(counts, [timer.median_ns(gather, count) for count in counts], rows)
        times = CopyTimes(gathered)
        straight = self._measure_straight(staged, content, counts, timer)
        if straight is not None:
            times = CopyTimes(gathered, _line(counts, straight[0], rows), straight[1])
        self._log(staged, times, most)
        return times

    def _measure_straight(
        self, staged: StagedTensor, content: np.ndarray, counts: Sequence[int], timer: _Timer
    ) -> tuple[list[int], bool] | None:
        """Return the times of straight copies by rows, and whether one call begins them: the faster of both.

        Return None if the system refuses them, or rows arrive changed.
        """
        address, size = content.ctypes.data, _whole_pages(content.nbytes)
        try:
            self._cuda.register_host(address, size)
        except CudaError as error:
            self._log_refusal(error)
            return None
        try:
            best: tuple[list[int], bool] | None = None
            for in_batches in (False, True) if self._cuda.copies_in_batches else (False,):

                def send(count: int, in_batches: bool = in_batches) -> None:
                    numbers = np.arange(2 * count - 1, 0, -2).astype(np.uint64)
                    sources = np.uint64(address) + numbers * np.uint64(staged.row_bytes)
                    piece = np.zeros(count, np.int64)
                    begin_copies(self._cuda, staged, sources, piece, timer.stream, in_batches=in_batches)

                try:
                    times = [timer.median_ns(send, count) for count in counts]
                    self._check_arrived(staged, content, timer.stream)
                except CudaError as error:
                    logger.info("%s: straight copies are left out: %s", self._name, error)
                    continue
                if best is None or times[-1] < best[0][-1]:
                    best = times, in_batches
            return best
        finally:
            self._cuda.unregister_host(address)

    def _check_arrived(self, staged: StagedTensor, content: np.ndarray, stream: int) -> None:
        """Raise CudaError unless the device has every second row of `content`, from the last one on."""
        expected = content[::-2]
        size = expected.nbytes
        self._cuda.copy_to_host(staged.host_address, staged.device_address, size, stream)
        self._cuda.synchronize(stream)
        arrived = staged.host[: len(expected)].reshape(-1).view(np.uint8).reshape(expected.shape)
        if not np.array_equal(arrived, expected):
            raise CudaError("rows arrived changed")
        # Rows of this measurement must not make the next one look right.
        self._cuda.fill_with_zeros(staged.device_address, size, stream)
        self._cuda.synchronize(stream)

    def _log(self, staged: StagedTensor, times: CopyTimes, most: int) -> None:
        kind = "straight from the arenas" if times.is_straight(most) else "after they are gathered"
        logger.info(
            "%s: %s: rows of %d bytes are copied %s, %d of them in %.3f ms",
            self._name,
            staged.name,
            staged.row_bytes,
            kind,
            most,
            times.copy_ns(most) / 1e6,
        )
        for rows in sorted({1, max(1, most // 4), most}):
            straight = "-" if times.straight_ns is None else f"{times.straight_ns[rows] / 1e6:.3f}"
            logger.debug(
                "%s: %s: %d rows: gathered and copied %.3f ms, straight %s ms",
                self._name,
                staged.name,
                rows,
                times.gathered_ns[rows] / 1e6,
                straight,
            )


class _Timer(Struct, frozen=True):
    cuda: CudaRuntime
    stream: int
    clock_ns: Callable[[], int]

    def median_ns(self, begin: Callable[[int], None], count: int) -> int:
        """Return the median time from the begin of a copy until it is done, without the first one."""
        times_ns = []
        for _ in range(1 + _RUNS):
            begun_ns = self.clock_ns()
            begin(count)
            self.cuda.synchronize(self.stream)
            times_ns.append(self.clock_ns() - begun_ns)
        return round(statistics.median(times_ns[1:]))


def _line(counts: Sequence[int], times_ns: Sequence[int], rows: int) -> list[int]:
    """Return the times of 0 to `rows` rows, interpolated, and extrapolated from the last two measured ones."""
    rising = np.maximum.accumulate(np.array(times_ns, float))
    slope = 0.0
    if len(counts) > 1:
        slope = (rising[-1] - rising[-2]) / (counts[-1] - counts[-2])
    wanted = np.arange(rows + 1)
    within = np.interp(wanted, counts, rising)
    beyond = np.maximum(0, wanted - counts[-1]) * slope
    line: list[int] = np.round(within + beyond).astype(np.int64).tolist()
    return line


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
