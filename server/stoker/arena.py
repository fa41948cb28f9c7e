"""Rows in shared memory: one arena joins one frontend with one servable in a device process.

An arena is a sparse memfd. It holds, for each input and output of the signature, an array of `capacity` rows,
and beside them a small header for each row. A doorbell (see `exchange`) carries the numbers of the rows;
which process may write a row follows from who holds its number:

    frontend: FREE -> LEASED -> QUEUED   writes inputs, their lengths, `queued`
    device:   RUNNING -> DONE            writes outputs, their lengths, `done`
    frontend: FREE

The one exception is `deadline_ns`: the frontend sets it to 0 to cancel a row that the device still holds.
It is a single aligned 8-byte store, so the device sees the old value or the new one.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stoker.board import BOARD_WORDS
from stoker.tensors import Signature, TensorSpec

__all__ = [
    "AWAKE_NS",
    "LONE_ROWS",
    "Arena",
    "Outcome",
    "capacity_rows",
    "push_numbers",
]

AWAKE_NS = 300_000
"""How long either side of an exchange goes on looking before it sleeps, while only lone rows come and go.

Waking a sleeping process costs tens of microseconds, more than a small model computes."""
LONE_ROWS = 4
"""After so many rows in a row that had no company, the next one is expected to have none."""

_ALIGN = mmap.PAGESIZE
_PUNCH_BYTES = 1 << 20
_ARENA_BUDGET_BYTES = 512 << 20
_MAX_CAPACITY_ROWS = 16384
_MIN_CAPACITY_ROWS = 64
_BODY_CAPACITY_ROWS = 1024
_ADDRESS_BUDGET_BYTES = 4 << 40


class Outcome(IntEnum):
    """What became of a row, as the device reports it; the first output of one that is REFUSED says why."""

    OK = 0
    FAILED = 1
    EXPIRED = 2
    TOO_LARGE = 3
    REFUSED = 4
    OUT_OF_MEMORY = 5
    UNKNOWN_SEQUENCE = 6
    TOO_MANY_SEQUENCES = 7


def push_numbers(doorbell: socket.socket, data: bytes) -> bytes:
    """Send as much of row numbers as a doorbell takes; returns the rest.

    There is none if the other process has gone: the next read tells, behind what it has still said.
    """
    try:
        sent = doorbell.send(data)
    except BlockingIOError:
        sent = 0
    except OSError:
        sent = len(data)
    return data[sent:]


@dataclass(frozen=True)
class _Field:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Pages:
    """Where the data of one variable input or output is, row by row, and how long it is."""

    offset: int
    stride: int
    lengths: np.ndarray


_QUEUED_COLUMNS = ("deadline_ns", "enqueued_ns", "position", "target_ns", "size", "placed")
_DONE_COLUMNS = ("outcome", "started_ns", "finished_ns", "detail")


def capacity_rows(signature: Signature, max_batch_rows: int) -> int:
    """Choose how many rows an arena has: the admission limit of one frontend for one servable.

    Tensor rows share a budget of 512 MiB, and there are always enough for two full batches. Rows of whole requests
    are sparse: only the bytes of requests in flight take memory, but all of them take addresses.
    """
    if signature.takes != "rows":
        return max(1, min(_BODY_CAPACITY_ROWS, _ADDRESS_BUDGET_BYTES // signature.row_bytes))
    fixed = sum(spec.row_bytes for spec in (*signature.inputs, *signature.outputs) if not spec.variable)
    wanted = min(_MAX_CAPACITY_ROWS, _ARENA_BUDGET_BYTES // max(1, fixed))
    return max(wanted, 2 * max_batch_rows, _MIN_CAPACITY_ROWS)


def _layout(signature: Signature, capacity: int) -> tuple[list[_Field], int]:
    fields, offset = [], 0

    def add(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        nonlocal offset
        fields.append(_Field(name, dtype, shape, offset))
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        offset += -(-size // _ALIGN) * _ALIGN

    # One matrix for each writer: what a process needs of a row's header is one gather or one scatter.
    add("queued", "int64", (capacity, len(_QUEUED_COLUMNS)))
    add("done", "int64", (capacity, len(_DONE_COLUMNS)))
    # One of the frontend's, one of the device's, each written once.
    add("flags", "int64", (2,))
    add("turn_ns", "int64", (capacity,))
    add("board", "int64", (BOARD_WORDS,))
    for side, specs in (("in", signature.stored_inputs), ("out", signature.outputs)):
        for index, spec in enumerate(specs):
            if spec.variable:
                add(f"{side}{index}.length", "int64", (capacity,))
            add(f"{side}{index}", spec.dtype, (capacity, *_stored_shape(spec)))
    return fields, max(offset, _ALIGN)


def _stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    # Variable rows start on a page of their own, so that the pages of a large one can be given back.
    return (-(-spec.shape[0] // _ALIGN) * _ALIGN,) if spec.variable else spec.shape


class Arena:
    """One process's view of an arena.

    Attributes:
        capacity: Number of rows.
        inputs: Per input an array `[capacity, *row_shape]` (for a variable one `uint8[capacity, bytes]`); behind them
            `int64[capacity, 3]` with what rows say of their sequences, for a model that has some.
        outputs: Likewise for the outputs.
        input_lengths: Per input the lengths in bytes, `int64[capacity]`, or None where all rows have one size.
        output_lengths: Likewise for the outputs.
        queued: What the frontend says of a row, `int64[capacity, 6]`; its columns are `deadline_ns`,
            `enqueued_ns`, `position` (the row's place within its request), and, once `told` is set, `target_ns`
            (until when its answer is worth something, 0 for its deadline), `size` (rows of its request) and `placed`
            (its tier, caller, and the caller's weight, see `stoker.placed`).
        told: `int64[1]`: whether the last three columns are written. Most frontends never have anything to say there,
            so that it costs them nothing.
        board: What the device says of its queue, `int64[BOARD_WORDS]`; see `stoker.board`.
        done: What the device says of it, `int64[capacity, 4]`; its columns are `outcome` (see `Outcome`),
            `started_ns`, `finished_ns` and `detail`: of an answered row its batch, see
            `stoker.metrics.batch_facts`; of one that failed the id under which the log has more; else 0.
        turn_ns: How long a row's batch waited for its turn of the device, `int64[capacity]`, once `turned` is set.
        turned: `int64[1]`: whether batches have ever taken turns. On most devices they never do, so that it costs
            them nothing.

    Times are nanoseconds of `time.monotonic_ns`, one clock for all processes of a machine.
    """

    deadline_ns: np.ndarray
    enqueued_ns: np.ndarray
    started_ns: np.ndarray
    finished_ns: np.ndarray
    detail: np.ndarray
    position: np.ndarray
    outcome: np.ndarray
    target_ns: np.ndarray
    size: np.ndarray
    placed: np.ndarray

    def __init__(self, fd: int, signature: Signature, capacity: int) -> None:
        """Map an arena that `create` made; `fd` may be closed afterwards."""
        self.signature = signature
        self.capacity = capacity
        fields, size = _layout(signature, capacity)
        self._memory = mmap.mmap(fd, size)
        arrays = {field.name: self._array(field) for field in fields}
        self._pages = [
            _Pages(field.offset, field.shape[1], arrays[f"{field.name}.length"])
            for field in fields
            if f"{field.name}.length" in arrays
        ]
        self.queued = arrays["queued"]
        self.done = arrays["done"]
        self.told, self.turned = arrays["flags"][:1], arrays["flags"][1:]
        self.turn_ns = arrays["turn_ns"]
        self.board = arrays["board"]
        for column, name in enumerate(_QUEUED_COLUMNS):
            setattr(self, name, self.queued[:, column])
        for column, name in enumerate(_DONE_COLUMNS):
            setattr(self, name, self.done[:, column])
        self.inputs = [arrays[f"in{i}"] for i in range(len(signature.stored_inputs))]
        self.outputs = [arrays[f"out{i}"] for i in range(len(signature.outputs))]
        self.input_lengths = [arrays.get(f"in{i}.length") for i in range(len(signature.inputs))]
        self.output_lengths = [arrays.get(f"out{i}.length") for i in range(len(signature.outputs))]

    @property
    def only_input(self) -> np.ndarray | None:
        """The rows of the only input, if its rows are arrays: one number cannot be copied into them as an array."""
        inputs = self.signature.stored_inputs
        return self.inputs[0] if len(inputs) == 1 and inputs[0].shape else None

    @property
    def only_memory(self) -> tuple[memoryview | None, int]:
        """The bytes of all rows of `only_input`, one behind the other, and how many each has; None without it."""
        rows = self.only_input
        return (None, 0) if rows is None else (rows.reshape(-1).view(np.uint8).data, rows.strides[0])

    @staticmethod
    def create(signature: Signature, capacity: int) -> int:
        """Make a sparse shared-memory file for `capacity` rows and return its file descriptor."""
        _, size = _layout(signature, capacity)
        fd = os.memfd_create("stoker-arena", os.MFD_CLOEXEC)
        os.truncate(fd, size)
        return fd

    def _array(self, field: _Field) -> np.ndarray:
        count = int(np.prod(field.shape, dtype=np.int64))
        return np.frombuffer(self._memory, field.dtype, count, field.offset).reshape(field.shape)

    def words(self, name: str) -> memoryview:
        """A header array as a memoryview of int64: single items cost a third of what numpy's cost."""
        return memoryview(getattr(self, name))

    def write_bytes(self, side: str, index: int, number: int, data: bytes | memoryview) -> bool:
        """Store variable-length data in a row; False if it is longer than the row."""
        arrays, lengths = self._side(side)
        length = lengths[index]
        assert length is not None, "only variable rows hold bytes"
        size = len(data)
        if size > self._spec(side, index).shape[0]:
            return False
        arrays[index][number, :size] = np.frombuffer(data, np.uint8)
        length[number] = size
        return True

    def read_bytes(self, side: str, index: int, number: int) -> bytes:
        """Copy variable-length data out of a row."""
        arrays, lengths = self._side(side)
        length = lengths[index]
        assert length is not None, "only variable rows hold bytes"
        return arrays[index][number, : int(length[number])].tobytes()

    def keeps(self, number: int) -> bool:
        """Whether a row still has all of its variable data: long ones are given back with their request."""
        return all(pages.lengths[number] for pages in self._pages)

    def give_back_pages(self, number: int) -> None:
        """Return the memory of a row's large variable data to the system."""
        for pages in self._pages:
            length = int(pages.lengths[number])
            if length >= _PUNCH_BYTES:
                self._punch(pages, number, -(-length // _ALIGN) * _ALIGN)

    def give_back_kept_pages(self, numbers: Sequence[int]) -> bool:
        """Return what `give_back_pages` has left to the first of these rows that has any; False if none has."""
        index = np.array(numbers, np.int64)
        holds = np.any([pages.lengths[index] > 0 for pages in self._pages], axis=0)
        if not holds.any():
            return False
        number = int(index[holds.argmax()])
        for pages in self._pages:
            # The last request in it was perhaps not its longest.
            self._punch(pages, number, min(pages.stride, _PUNCH_BYTES))
        return True

    def _punch(self, pages: _Pages, number: int, size_bytes: int) -> None:
        self._memory.madvise(mmap.MADV_REMOVE, pages.offset + number * pages.stride, size_bytes)
        pages.lengths[number] = 0

    def _side(self, side: str) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        return (self.inputs, self.input_lengths) if side == "in" else (self.outputs, self.output_lengths)

    def _spec(self, side: str, index: int) -> TensorSpec:
        return (self.signature.inputs if side == "in" else self.signature.outputs)[index]
