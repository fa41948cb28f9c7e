"""History of the counters, in shared memory after the pages: steps of a second, and of twenty seconds for longer.

The supervisor writes a step each second; any frontend reads them (decision 32). Steps hold cumulative counters, so
readers compute differences, and a missing step only reduces the resolution. Only parts for models and processes in
use take memory: 2 MiB for each version that has been served, and 2 MiB for the server.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from stoker.gpu.facts import GpuReading
from stoker.metrics import layout, table

RINGS: Final = {1: 900, 20: 1080}
"""Number of steps that can be read, by the length of a step in seconds: fifteen minutes, and six hours."""
_SPARE_S: Final = 60
"""Steps stay for a further minute, so that none is overwritten while it is read."""

_KEPT_METRICS: Final = (
    table.REQUESTS,
    table.REJECTED,
    table.ROWS,
    table.ROWS_IN_FLIGHT,
    table.QUEUED_ROWS,
    table.READY_REPLICAS,
    table.DISPATCHES,
    table.BATCH_ROWS,
    table.PADDING_ROWS,
    table.STAGE_TIMES,
    table.ROW_COMPUTE,
    table.HELD_REQUESTS,
)
_KEPT: Final = np.array(table.SLOT.words_that(lambda metric: metric in _KEPT_METRICS))
"""The words of a slot that each step keeps."""
_GPU_FIELDS: Final = (
    "utilization_percent", "memory_used_bytes", "memory_total_bytes", "power_mw", "power_limit_mw", "temperature_c",
)  # fmt: skip
_GPU_WORDS: Final = 1 + len(_GPU_FIELDS)
_SERVER_WORDS: Final = 3 + layout.DEVICE_SLOTS * _GPU_WORDS
_PROCESS_WORDS: Final = 3
_UNKNOWN: Final = -1


def _pages(words: int) -> int:
    return -(-8 * words // mmap.PAGESIZE) * mmap.PAGESIZE


def _slots(step_s: int) -> int:
    """Return how many steps a ring has room for."""
    return RINGS[step_s] + _SPARE_S // step_s


def _ring_bytes(step_s: int) -> int:
    """Return the size of a ring: its steps of the server, of each slot, and of each process."""
    slots = _slots(step_s)
    models, processes = _pages(slots * len(_KEPT)), _pages(slots * _PROCESS_WORDS)
    return _pages(slots * _SERVER_WORDS) + layout.MODEL_SLOTS * models + layout.PAGES * processes


_HEAD_BYTES: Final = _pages(len(RINGS))
_PAST_BYTES: Final = _HEAD_BYTES + sum(map(_ring_bytes, RINGS))
PAST_END: Final = table.MEMORY_BYTES + _PAST_BYTES
"""Offset of the end of the history in the metrics file."""


class ProcessReading(Struct, frozen=True):
    """The resource use of a process at one moment, and its page of the metrics."""

    page: int
    pid: int
    cpu_ms: int
    memory_bytes: int


class Steps(Struct, frozen=True):
    """Steps in ascending order, preceded by the step from which differences are computed.

    Attributes:
        last: The number of the latest step; 0 if there is none.
        time_ms: The time of each step, in milliseconds since 1970: `int64[steps]`.
        restarts: Cumulative restarts of device processes and frontends: `int64[steps, 2]`.
        slots: The counters, summed over the requested slots; 0 for words that the history does not keep:
            `int64[steps, table.SLOT_WORDS]`.
    """

    last: int
    time_ms: np.ndarray
    restarts: np.ndarray
    slots: np.ndarray
    _gpus: np.ndarray
    _processes: np.ndarray

    def processes(self) -> dict[int, np.ndarray]:
        """Pid, ms and bytes of each process that ran in the last step, by page: `int64[steps, 3]`."""
        if not len(self.time_ms):
            return {}
        return {
            page: self._processes[page] for page in np.flatnonzero(self._processes[:, -1, 0] > 0).tolist()
        }

    def gpus(self) -> dict[int, dict[str, list[int | None]]]:
        """Readings of each GPU present in the last step, by index and quantity; None where a value is missing."""
        found = {}
        for index in range(layout.DEVICE_SLOTS):
            words = self._gpus[:, index]
            if len(words) and words[-1, 0]:
                found[index] = {
                    name: [None if value == _UNKNOWN else value for value in words[:, 1 + place].tolist()]
                    for place, name in enumerate(_GPU_FIELDS)
                }
        return found


class Past:
    """The rings of steps; one process writes them, any may read."""

    def __init__(self, fd: int) -> None:
        """Map the metrics file; `fd` may be closed afterwards."""
        self._memory = mmap.mmap(fd, _PAST_BYTES, offset=table.MEMORY_BYTES)
        words = np.frombuffer(self._memory, np.int64)
        self._rings, start = {}, _HEAD_BYTES // 8
        for place, step_s in enumerate(RINGS):
            end = start + _ring_bytes(step_s) // 8
            self._rings[step_s] = _Ring(words[place : place + 1], words[start:end], step_s)
            start = end

    def record(
        self,
        time_ms: int,
        slots: np.ndarray,
        restarts: Sequence[int],
        gpus: Iterable[GpuReading],
        processes: Iterable[ProcessReading],
    ) -> None:
        """Write a step of a second, and a longer one whenever its time has passed.

        Args:
            slots: The counters of all slots: `int64[layout.MODEL_SLOTS, table.SLOT_WORDS]`.
        """
        fine = self._rings[1]
        self._forget(fine.reused(slots))
        gpus, processes, written = list(gpus), list(processes), fine.last
        for step_s, ring in self._rings.items():
            if written % step_s == 0:
                ring.record(time_ms, slots, restarts, gpus, processes)

    def _forget(self, slots: Iterable[int]) -> None:
        """Clear the history of slots that were given to other versions, which do not share it."""
        for slot in slots:
            for ring in self._rings.values():
                ring.forget(slot)

    def read(self, slots: Iterable[int], since: int = 0, step_s: int = 1) -> Steps:
        """Return the steps after `since` (0: all), preceded by that step, with the sums of the slots' counters.

        Args:
            step_s: The length of the steps, one of `RINGS`; each length has numbers of its own.
        """
        return self._rings[step_s].read(slots, since)


class _Ring:
    """The steps of one length: `last` is the number of the latest one, 0 if there is none."""

    def __init__(self, head: np.ndarray, words: np.ndarray, step_s: int) -> None:
        self._head, self._steps, self._room = head, RINGS[step_s], _slots(step_s)
        room = self._room
        self._server, words = _columns(words, 1, room, _SERVER_WORDS)
        self._models, words = _columns(words, layout.MODEL_SLOTS, room, len(_KEPT))
        self._processes, _ = _columns(words, layout.PAGES, room, _PROCESS_WORDS)
        self._used_slots: set[int] = set()
        self._used_pages: set[int] = set()

    @property
    def last(self) -> int:
        return int(self._head[0])

    def reused(self, slots: np.ndarray) -> list[int]:
        """Return the slots whose counters are below the last step: those of one version never decrease."""
        end = table.REJECTED.end
        last = self._models[:, self.last % self._room, :end]
        return [slot for slot in self._used_slots if (slots[slot, :end] < last[slot]).any()]

    def forget(self, slot: int) -> None:
        # Only a slot that was used here: else pages of memory would be touched for nothing.
        if slot in self._used_slots:
            self._models[slot] = 0

    def record(
        self,
        time_ms: int,
        slots: np.ndarray,
        restarts: Sequence[int],
        gpus: Iterable[GpuReading],
        processes: Iterable[ProcessReading],
    ) -> None:
        place = (self.last + 1) % self._room
        server = self._server[0, place]
        server[:] = 0
        server[:3] = (time_ms, *restarts)
        for gpu in gpus:
            if gpu.index < layout.DEVICE_SLOTS:
                values = (getattr(gpu, name) for name in _GPU_FIELDS)
                start = 3 + gpu.index * _GPU_WORDS
                known = (_UNKNOWN if value is None else value for value in values)
                server[start : start + _GPU_WORDS] = (1, *known)
        # A slot or page that was never used takes no memory; one that is no longer used has to be overwritten.
        self._used_slots.update(np.flatnonzero(slots.any(axis=1)).tolist())
        for slot in self._used_slots:
            self._models[slot, place] = slots[slot, _KEPT]
        readings = {process.page: process for process in processes}
        self._used_pages.update(readings)
        for page in self._used_pages:
            reading = readings.get(page)
            self._processes[page, place] = (
                (0, 0, 0) if reading is None else (reading.pid, reading.cpu_ms, reading.memory_bytes)
            )
        # Written last, so that nobody reads an incomplete step.
        self._head[0] = self.last + 1

    def read(self, slots: Iterable[int], since: int) -> Steps:
        last = self.last
        first = max(1, last - self._steps, min(since, last))
        places = np.arange(first if last else 1, last + 1) % self._room
        server = self._server[0, places]
        counters = np.zeros((len(places), table.SLOT_WORDS), np.int64)
        for slot in slots:
            counters[:, _KEPT] += self._models[slot, places]
        gpus = server[:, 3:].reshape(-1, layout.DEVICE_SLOTS, _GPU_WORDS)
        return Steps(last, server[:, 0], server[:, 1:3], counters, gpus, self._processes[:, places])


def _columns(words: np.ndarray, things: int, room: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of each thing, `int64[things, room, width]`, at the start of `words`; and the others."""
    size = _pages(room * width) // 8
    own, others = words[: things * size].reshape(things, size), words[things * size :]
    return own[:, : room * width].reshape(things, room, width), others
