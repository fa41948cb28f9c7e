"""Rows in shared memory: one arena connects one frontend with one model in a device process.

An arena is a sparse memfd. For each input and output of the signature it holds an array of `capacity` rows, and a
small header for each row. Row numbers are passed through a doorbell (see `exchange`); the process that holds a row's
number may write the row:

    frontend: FREE -> LEASED -> QUEUED   writes inputs, their lengths, `queued`
    device:   RUNNING -> DONE            writes outputs, their lengths, `done`
    frontend: FREE

The one exception is `deadline_ns`: the frontend sets it to 0 to cancel a row that the device still holds.
It is a single aligned 8-byte store, so the device sees the old value or the new one.

See decision 1.
"""

from __future__ import annotations

import mmap
import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from stoker.system.resources import usable_cores
from stoker.tensors import Signature, TensorSpec

NORMAL_TIER: Final = 1
CALLER_BITS: Final = 16
WEIGHT_BITS: Final = 32
"""`placed` is `weight << WEIGHT_BITS | tier << CALLER_BITS | caller`, the weight in thousandths, or 0 for 1."""
CALLER_MASK: Final = (1 << CALLER_BITS) - 1
"""Mask of the caller's bits."""
TIER_MASK: Final = (1 << WEIGHT_BITS - CALLER_BITS) - 1
"""Mask of the tier's bits after shifting out the caller's."""
NORMAL: Final = NORMAL_TIER << CALLER_BITS
"""The default class: tier normal, caller 0."""


def tier_of(placed: int) -> int:
    """The tier of a class."""
    return placed >> CALLER_BITS


def caller_of(placed: int) -> int:
    """The caller's number of a class."""
    return placed & CALLER_MASK


AWAKE_NS: Final = 2_000_000 if usable_cores() >= 8 else 300_000
"""How long each side of an exchange polls before it sleeps, while rows come and go one at a time.

Waking a sleeping process costs tens of microseconds, more than a small model computes. Among many cores, one that
polls is not missed, and a lone row of a larger model gains from it too."""
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
    """The outcome of a row, as reported by the device; if REFUSED or REPORTED, the first output holds the error."""

    OK = 0
    FAILED = 1
    EXPIRED = 2
    TOO_LARGE = 3
    REFUSED = 4
    OUT_OF_MEMORY = 5
    UNKNOWN_SEQUENCE = 6
    TOO_MANY_SEQUENCES = 7
    REPORTED = 8


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
        inputs: Per input an array `[capacity, *row_shape]` (`uint8[capacity, bytes]` if variable); for models with
            sequences followed by `int64[capacity, 3]`, which identifies the sequence of each row.
        input_lengths: Per input the lengths in bytes, `int64[capacity]`, or None if all rows have one size.
        queued: Row headers written by the frontend, `int64[capacity, 6]`; columns are `deadline_ns`, `enqueued_ns`,
            `position` (of the row within its request), and, once `has_urgencies` is set, `target_ns` (until when its
            answer is useful, 0 for its deadline), `size` (rows of its request) and `placed` (its tier, its caller,
            and the caller's weight, see `stoker.arena`).
        has_urgencies: `int64[1]`: whether the last three columns are valid. Most frontends never need them, and do
            not write them.
        board: The state of the device's queue, `int64[BOARD_WORDS]`; see `stoker.arena`.
        done: Row headers written by the device, `int64[capacity, 4]`; columns are `outcome` (see `Outcome`),
            `started_ns`, `finished_ns` and `detail`: for an answered row the facts of its batch, see
            `stoker.metrics.counters`; for a failed one the id of its log entry; else 0.
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
        self.has_urgencies, self.turned, self.consumer = (
            arrays["flags"][word : word + 1] for word in range(3)
        )
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


LATER_BATCHES: Final = 8
"""For how many full batches ahead the number of due rows is published; longer targets have room in any case."""
_NEVER_NS: Final = 1 << 62
_SIZES: Final = 17
"""Expected times are for 1, 2, 4 ... rows, up to the batch cap."""
_CLASSES: Final = 64
"""Queued rows are published for this many classes, those with the most rows; others count as one row."""
_SEQUENCE, _WRITTEN, _FREE, _CAP, _PARALLEL, _OTHER, _LANES, _CLASS_COUNT, _TIERS = range(9)
_LATER: Final = _TIERS + 3
_COSTS: Final = _LATER + LATER_BATCHES
_FIRST_CLASS: Final = _COSTS + _SIZES
BOARD_WORDS: Final = _FIRST_CLASS + 3 * _CLASSES
_WINDOW_NS: Final = 250_000_000
_FULL: Final = 1.02
_MOST_STEP: Final = 3.0
_MOST_CROWDING: Final = 100.0


def gather(blocks: Sequence[tuple[Arena, np.ndarray]], index: int, out: np.ndarray) -> None:
    """Copy rows of one input of several arenas, one after the other.

    Args:
        blocks: Arenas, with the numbers of the rows in each.
        index: Of the input.
        out: `[rows or more, *row_shape]`.
    """
    start = 0
    for arena, numbers in blocks:
        stop = start + len(numbers)
        # With mode="clip" numpy writes into `out` without an intermediate buffer.
        arena.inputs[index].take(numbers, axis=0, out=out[start:stop], mode="clip")
        start = stop


class Board:
    """The state of the queue of one model in one device process.

    Attributes:
        written_ns: When the device published it; 0 if it has not yet.
        other_ns: The longest batch that another model of the device offers.
        classes: Queued rows and weight by `tier << 16 | caller`, if callers are distinguished; if empty, all queued
            rows are of the default caller.
        later: How many of them are due one full batch after `free_ns` or later, two full batches, and so on; empty if
            unknown.
        costs_ns: Expected times of batches of 1, 2, 4 ... rows; the last one of `cap` rows.
        load: Recently requested rows divided by those that the device could have processed.
        crowding: Factor on the retry time of refused requests, so that no more return than can be processed: it grows
            while too many do, and shrinks otherwise.
    """

    __slots__ = (
        "_requested_rows",
        "_since_ns",
        "_weights",
        "cap",
        "classes",
        "costs_ns",
        "crowding",
        "free_ns",
        "lanes",
        "later",
        "load",
        "other_ns",
        "parallel",
        "waiting",
        "written_ns",
    )

    def __init__(self) -> None:
        self.written_ns = self.free_ns = self.cap = self.other_ns = 0
        self.parallel = self.lanes = 1
        self.waiting = [0, 0, 0]
        self.later: list[int] = []
        self.classes: dict[int, list[float]] = {}
        self._weights = [0.0, 0.0, 0.0]
        self.costs_ns: Sequence[int] = ()
        self.load, self.crowding = 0.0, 1.0
        self._requested_rows = self._since_ns = 0

    def batch_ns(self, rows: int) -> int:
        """The expected time of this many rows, in batches as large as possible."""
        cap, costs = self.cap, self.costs_ns
        if rows <= 0:
            return 0
        if rows <= cap:
            return self._part_ns(rows)
        batches, rest = divmod(rows, cap)
        total = batches * costs[-1] + (self._part_ns(rest) if rest else 0)
        return total if self.parallel == 1 else max(costs[-1], total // self.parallel)

    def _part_ns(self, rows: int) -> int:
        place = (rows - 1).bit_length()
        if not place:
            return self.costs_ns[0]
        low, high = 1 << place - 1, min(1 << place, self.cap)
        low_ns, high_ns = self.costs_ns[place - 1], self.costs_ns[place]
        return low_ns + (high_ns - low_ns) * (rows - low) // (high - low)

    def ask(self, now_ns: int, rows: int) -> None:
        """Record that rows were requested, whether admitted or not."""
        self._requested_rows += rows
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _WINDOW_NS and self.cap:
            can = elapsed_ns * self.cap * self.parallel / max(1, self.costs_ns[-1])
            self.load = self._requested_rows * self.lanes / can
            more = min(_MOST_STEP, max(1 / _MOST_STEP, self.load / _FULL))
            self.crowding = min(_MOST_CROWDING, max(1.0, self.crowding * more))
            self._requested_rows, self._since_ns = 0, now_ns

    def full_batches_until(self, due_ns: int, begins_ns: int) -> int:
        """Number of full batches that end before `due_ns` if the first one starts at `begins_ns`."""
        return (due_ns - begins_ns) // max(1, self.costs_ns[-1])

    def take(self, rows: int, tier: int, caller: int, weight: float, due_ns: int = _NEVER_NS) -> None:
        """Add rows that are on their way to the device; a negative number removes them.

        Args:
            due_ns: Until when their answers are useful.
        """
        # The other frontends are assumed to send as many.
        rows *= self.lanes
        if caller and not self.classes:
            # Without classes, all queued rows belong to the default caller.
            self.set_classes(
                {of << CALLER_BITS: [waiting, 1.0] for of, waiting in enumerate(self.waiting) if waiting}
            )
        self.waiting[tier] = max(0, self.waiting[tier] + rows)
        if self.later:
            batches = self.full_batches_until(due_ns, max(self.written_ns, self.free_ns))
            for place in range(min(len(self.later), batches)):
                self.later[place] = max(0, self.later[place] + rows)
        if caller or self.classes:
            placed = tier << CALLER_BITS | caller
            known = self.classes.get(placed)
            if known is None:
                known = self.classes[placed] = [0, weight]
                self._weights[tier] += weight
            known[0] = max(0, known[0] + rows)

    def share_of(self, rows: int, tier: int, caller: int, weight: float) -> float:
        """Number of rows of a tier served before this many more rows of a caller are, these included, by weight."""
        known = self.classes.get(tier << CALLER_BITS | caller)
        if known is None:
            # Rows without a class have weight 1.
            return rows * ((self._weights[tier] or 1.0) + weight) / weight
        return (known[0] + rows) * (self._weights[tier] - known[1] + weight) / weight

    def set_classes(self, classes: dict[int, list[float]]) -> None:
        """Set queued rows and weights by `tier << 16 | caller`."""
        self.classes, self._weights = classes, [0.0, 0.0, 0.0]
        for placed, (_, weight) in classes.items():
            self._weights[tier_of(placed)] += weight


class BoardPage(Board):
    """The state of a queue, read from its page.

    Args:
        words: The page, `BOARD_WORDS` words.
    """

    __slots__ = ("_sequence", "_words")

    def __init__(self, words: memoryview) -> None:
        super().__init__()
        self._words = words
        self._sequence = 0

    def forget_sent(self) -> None:
        """Reset to what the device has published; the rows sent since are discounted."""
        self._sequence = 0

    def look(self) -> None:
        """Read the page if it has changed."""
        sequence = self._words[_SEQUENCE]
        if sequence != self._sequence and not sequence & 1:
            self._read(sequence)

    def _read(self, sequence: int) -> None:
        words = self._words[:_FIRST_CLASS].tolist()
        count = words[_CLASS_COUNT]
        classes = self._words[_FIRST_CLASS : _FIRST_CLASS + 3 * count].tolist() if count else []
        if self._words[_SEQUENCE] != sequence:
            return
        self._sequence = sequence
        self.written_ns, self.free_ns, self.cap = words[_WRITTEN], words[_FREE], words[_CAP]
        self.parallel, self.other_ns, self.lanes = words[_PARALLEL], words[_OTHER], words[_LANES]
        self.waiting, self.later = words[_TIERS:_LATER], words[_LATER:_COSTS]
        self.costs_ns = words[_COSTS : _COSTS + (self.cap - 1).bit_length() + 1]
        self.set_classes(
            {
                classes[place]: [classes[place + 1], classes[place + 2] / 1000]
                for place in range(0, len(classes), 3)
            }
        )


class BoardWriter:
    """Publishes the state of a queue to all frontends."""

    def __init__(self) -> None:
        self._words = array("l", bytes(8 * BOARD_WORDS))
        self._used = _FIRST_CLASS

    def set_times(self, cap: int, costs_ns: Sequence[int]) -> None:
        """Set the expected batch times.

        Args:
            costs_ns: Expected times of batches of 0 to `cap` rows.
        """
        self._words[_CAP] = cap
        for place in range((cap - 1).bit_length() + 1):
            self._words[_COSTS + place] = costs_ns[min(1 << place, cap)]

    def set_queue(
        self, waiting: Sequence[int], classes: Mapping[int, tuple[int, float]], later: Sequence[int]
    ) -> None:
        """Set the queued rows.

        Args:
            later: How many of them are due one full batch after the device is idle or later, two full batches, and so
                on.
            classes: Rows and weight by `tier << 16 | caller`, if callers are distinguished.
        """
        words = self._words
        for tier, rows in enumerate(waiting):
            words[_TIERS + tier] = rows
        words[_LATER:_COSTS] = array("l", later)
        most = sorted(classes.items(), key=lambda item: -item[1][0])[:_CLASSES]
        words[_CLASS_COUNT] = len(most)
        place = _FIRST_CLASS
        for placed, (rows, weight) in most:
            words[place], words[place + 1], words[place + 2] = placed, rows, round(1000 * weight)
            place += 3
        self._used = place

    def write(
        self,
        pages: Sequence[memoryview],
        now_ns: int,
        free_ns: int,
        *,
        parallel: int = 1,
        other_ns: int = 0,
    ) -> None:
        """Write the state, and when the device is idle, to the pages of all frontends; see `Board`."""
        words, used = self._words, self._used
        words[_WRITTEN], words[_FREE], words[_PARALLEL], words[_OTHER] = now_ns, free_ns, parallel, other_ns
        words[_LANES] = len(pages)
        content = memoryview(words)[1:used]
        for page in pages:
            page[_SEQUENCE] += 1
            page[1:used] = content
            page[_SEQUENCE] += 1
