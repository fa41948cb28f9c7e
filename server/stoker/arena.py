"""Rows in shared memory: one arena connects one frontend with one model in a device process.

An arena is a sparse memfd. For each input and output of the signature it holds an array of `capacity` rows, and a
small header for each row. Row numbers are passed through a doorbell (see `exchange`); the process that holds a row's
number may write the row:

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
"""How long each side of an exchange polls before it sleeps, while rows come and go one at a time.

Waking a sleeping process costs tens of microseconds, more than a small model computes."""
LONE_ROWS = 4
"""After this many consecutive rows without company, the next one is expected to be alone too."""

_ALIGN = mmap.PAGESIZE
_PUNCH_BYTES = 1 << 20
_ARENA_BUDGET_BYTES = 512 << 20
_MAX_CAPACITY_ROWS = 16384
_MIN_CAPACITY_ROWS = 64
_BODY_CAPACITY_ROWS = 1024
_ADDRESS_BUDGET_BYTES = 4 << 40


class Outcome(IntEnum):
    """The outcome of a row, as reported by the device; the first output of a REFUSED row holds the error."""

    OK = 0
    FAILED = 1
    EXPIRED = 2
    TOO_LARGE = 3
    REFUSED = 4
    OUT_OF_MEMORY = 5
    UNKNOWN_SEQUENCE = 6
    TOO_MANY_SEQUENCES = 7


def push_numbers(doorbell: socket.socket, data: bytes) -> bytes:
    """Send as many row numbers as a doorbell accepts; returns the rest.

    Nothing remains if the other process has ended: reading yields its last numbers, then EOF.
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
    """Where the rows of one variable-length input or output are stored, and their lengths."""

    offset: int
    stride: int
    lengths: np.ndarray


_QUEUED_COLUMNS = ("deadline_ns", "enqueued_ns", "position", "target_ns", "size", "placed")
_DONE_COLUMNS = ("outcome", "started_ns", "finished_ns", "detail")


def capacity_rows(signature: Signature, max_batch_rows: int) -> int:
    """Choose the number of rows of an arena: the admission limit of one frontend for one model.

    Tensor rows share a budget of 512 MiB, with room for at least two full batches. Rows of whole requests are sparse:
    only the bytes of requests in flight take memory, but all rows take address space.
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

    # One matrix per writer: a process accesses the header of rows with one gather or scatter.
    add("queued", "int64", (capacity, len(_QUEUED_COLUMNS)))
    add("done", "int64", (capacity, len(_DONE_COLUMNS)))
    # One flag of the frontend, one of the device, and who the device is; each is set at most once.
    add("flags", "int64", (3,))
    add("turn_ns", "int64", (capacity,))
    add("board", "int64", (BOARD_WORDS,))
    for side, specs in (("in", signature.stored_inputs), ("out", signature.outputs)):
        for index, spec in enumerate(specs):
            if spec.variable:
                add(f"{side}{index}.length", "int64", (capacity,))
            add(f"{side}{index}", spec.dtype, (capacity, *_stored_shape(spec)))
    return fields, max(offset, _ALIGN)


def _stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    # Variable rows are page-aligned, so that the pages of a large row can be released.
    return (-(-spec.shape[0] // _ALIGN) * _ALIGN,) if spec.variable else spec.shape


class Arena:
    """One process's view of an arena.

    Attributes:
        capacity: Number of rows.
        inputs: Per input an array `[capacity, *row_shape]` (`uint8[capacity, bytes]` if variable); for models with
            sequences followed by `int64[capacity, 3]`, which identifies the sequence of each row.
        outputs: Likewise for the outputs.
        input_lengths: Per input the lengths in bytes, `int64[capacity]`, or None if all rows have one size.
        output_lengths: Likewise for the outputs.
        queued: Row headers written by the frontend, `int64[capacity, 6]`; columns are `deadline_ns`, `enqueued_ns`,
            `position` (of the row within its request), and, once `told` is set, `target_ns` (until when its answer is
            useful, 0 for its deadline), `size` (rows of its request) and `placed` (its tier, caller, and the caller's
            weight, see `stoker.placed`).
        told: `int64[1]`: whether the last three columns are valid. Most frontends never need them, and do not write
            them.
        board: The state of the device's queue, `int64[BOARD_WORDS]`; see `stoker.board`.
        done: Row headers written by the device, `int64[capacity, 4]`; columns are `outcome` (see `Outcome`),
            `started_ns`, `finished_ns` and `detail`: for an answered row the facts of its batch, see
            `stoker.metrics.batch_facts`; for a failed one the id of its log entry; else 0.
        turn_ns: How long a row's batch waited for its turn on the device, `int64[capacity]`; valid once `turned` is
            set.
        turned: `int64[1]`: whether batches have ever waited for turns. On most devices they never do, and `turn_ns`
            is not written.
        consumer: `int64[1]`: the id of the process that runs the rows, the only one that may; 0 until it has come.

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
        """Map an arena made by `create`; `fd` may be closed afterwards."""
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
        self.told, self.turned, self.consumer = (arrays["flags"][word : word + 1] for word in range(3))
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
        """The rows of the only input, if they are arrays and not scalars; None otherwise."""
        inputs = self.signature.stored_inputs
        return self.inputs[0] if len(inputs) == 1 and inputs[0].shape else None

    @property
    def only_memory(self) -> tuple[memoryview | None, int]:
        """The memory of all rows of `only_input`, and the bytes per row; None and 0 without it."""
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
        """A header array as a memoryview of int64; single items cost a third of numpy's."""
        return memoryview(getattr(self, name))

    def write_bytes(self, side: str, index: int, number: int, data: bytes | memoryview) -> bool:
        """Store variable-length data in a row; returns False if it does not fit."""
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
        """Whether a row still has all of its variable-length data; that of long requests is released at their end."""
        return all(pages.lengths[number] for pages in self._pages)

    def give_back_pages(self, number: int) -> None:
        """Return the memory of a row's large variable-length data to the system."""
        for pages in self._pages:
            length = int(pages.lengths[number])
            if length >= _PUNCH_BYTES:
                self._punch(pages, number, -(-length // _ALIGN) * _ALIGN)

    def give_back_kept_pages(self, numbers: Sequence[int]) -> bool:
        """Return memory kept by `give_back_pages` for the first of these rows that has any; False if none has."""
        index = np.array(numbers, np.int64)
        holds = np.any([pages.lengths[index] > 0 for pages in self._pages], axis=0)
        if not holds.any():
            return False
        number = int(index[holds.argmax()])
        for pages in self._pages:
            # An earlier request in the row may have been longer than the last one.
            self._punch(pages, number, min(pages.stride, _PUNCH_BYTES))
        return True

    def _punch(self, pages: _Pages, number: int, size_bytes: int) -> None:
        self._memory.madvise(mmap.MADV_REMOVE, pages.offset + number * pages.stride, size_bytes)
        pages.lengths[number] = 0

    def _side(self, side: str) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        return (self.inputs, self.input_lengths) if side == "in" else (self.outputs, self.output_lengths)

    def _spec(self, side: str, index: int) -> TensorSpec:
        return (self.signature.inputs if side == "in" else self.signature.outputs)[index]
