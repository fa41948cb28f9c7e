"""History of the counters: one step per second of the last fifteen minutes, in shared memory after the pages.

The supervisor writes a step each second; any frontend reads them. Steps hold cumulative counters, so readers compute
differences, and a missing step only reduces the resolution. Only parts for models and processes in use take memory:
about 1 MiB for each version that has been served.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.gpu.facts import GpuReading
from stoker.metrics import layout

STEPS: Final = 900
"""Number of steps that can be read; one step per second."""
_RING: Final = STEPS + 60
"""Steps stay for a further minute, so that none is overwritten while it is read."""

_KEPT: Final = np.concatenate(
    [
        np.arange(layout.READY_REPLICAS_BLOCK.end),
        *(
            np.arange(block.offset, block.end)
            for block in (
                layout.ROW_COMPUTE_BLOCK,
                layout.PADDING_BLOCK,
                layout.HELD_REQUESTS_BLOCK,
                layout.TARGET_REASONS_BLOCK,
            )
        ),
    ]
)
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


_SERVER_BYTES: Final = _pages(1) + _pages(_RING * _SERVER_WORDS)
_MODEL_BYTES: Final = _pages(_RING * len(_KEPT))
_PROCESS_BYTES: Final = _pages(_RING * _PROCESS_WORDS)
_PAST_BYTES: Final = _SERVER_BYTES + layout.MODEL_SLOTS * _MODEL_BYTES + layout.PAGES * _PROCESS_BYTES
PAST_END: Final = layout.MEMORY_BYTES + _PAST_BYTES
"""Offset of the end of the history in the metrics file."""


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """The resource use of a process at one moment, and its page of the metrics."""

    page: int
    pid: int
    cpu_ms: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in ascending order, preceded by the step from which differences are computed.

    Attributes:
        last: The number of the latest step; 0 if there is none.
        time_ms: The time of each step, in milliseconds since 1970: `int64[steps]`.
        restarts: Cumulative restarts of device processes and frontends: `int64[steps, 2]`.
        slots: The counters, summed over the requested slots; 0 for words that the history does not keep:
            `int64[steps, layout.SLOT_WORDS]`.
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
    """The ring of steps; one process writes it, any may read."""

    def __init__(self, fd: int) -> None:
        """Map the metrics file; `fd` may be closed afterwards."""
        self._memory = mmap.mmap(fd, _PAST_BYTES, offset=layout.MEMORY_BYTES)
        words = np.frombuffer(self._memory, np.int64)
        self._head = words[:1]
        self._server = words[_pages(1) // 8 :][: _RING * _SERVER_WORDS].reshape(_RING, _SERVER_WORDS)
        models = words[_SERVER_BYTES // 8 :][: layout.MODEL_SLOTS * _MODEL_BYTES // 8].reshape(
            layout.MODEL_SLOTS, -1
        )
        self._models = models[:, : _RING * len(_KEPT)].reshape(layout.MODEL_SLOTS, _RING, len(_KEPT))
        processes = words[-(layout.PAGES * _PROCESS_BYTES // 8) :].reshape(layout.PAGES, -1)
        self._processes = processes[:, : _RING * _PROCESS_WORDS].reshape(layout.PAGES, _RING, _PROCESS_WORDS)
        self._slots: set[int] = set()
        self._pages: set[int] = set()

    @property
    def last(self) -> int:
        """The number of the latest step; 0 if there is none."""
        return int(self._head[0])

    def record(
        self,
        time_ms: int,
        slots: np.ndarray,
        restarts: Sequence[int],
        gpus: Iterable[GpuReading],
        processes: Iterable[ProcessReading],
    ) -> None:
        """Write a step.

        Args:
            slots: The counters of all slots: `int64[layout.MODEL_SLOTS, layout.SLOT_WORDS]`.
        """
        place = (self.last + 1) % _RING
        server = self._server[place]
        server[:] = 0
        server[:3] = (time_ms, *restarts)
        for gpu in gpus:
            if gpu.index < layout.DEVICE_SLOTS:
                values = (getattr(gpu, name) for name in _GPU_FIELDS)
                start = 3 + gpu.index * _GPU_WORDS
                known = (_UNKNOWN if value is None else value for value in values)
                server[start : start + _GPU_WORDS] = (1, *known)
        # A slot or page that was never used takes no memory; one that is no longer used has to be overwritten.
        self._slots.update(np.flatnonzero(slots.any(axis=1)).tolist())
        for slot in self._slots:
            if (
                slots[slot, : layout.REJECTED_BLOCK.end]
                < self._models[slot, place - 1, : layout.REJECTED_BLOCK.end]
            ).any():
                # Counters never decrease: the slot was given to another version, which does not share this history.
                self._models[slot] = 0
            self._models[slot, place] = slots[slot, _KEPT]
        readings = {process.page: process for process in processes}
        self._pages.update(readings)
        for page in self._pages:
            reading = readings.get(page)
            self._processes[page, place] = (
                (0, 0, 0) if reading is None else (reading.pid, reading.cpu_ms, reading.memory_bytes)
            )
        # Written last, so that nobody reads an incomplete step.
        self._head[0] = self.last + 1

    def read(self, slots: Iterable[int], since: int = 0) -> Steps:
        """Return the steps after `since` (0: all), preceded by that step, with the sums of the slots' counters."""
        last = self.last
        first = max(1, last - STEPS, min(since, last))
        places = np.arange(first if last else 1, last + 1) % _RING
        server = self._server[places]
        counters = np.zeros((len(places), layout.SLOT_WORDS), np.int64)
        for slot in slots:
            counters[:, _KEPT] += self._models[slot, places]
        gpus = server[:, 3:].reshape(-1, layout.DEVICE_SLOTS, _GPU_WORDS)
        return Steps(last, server[:, 0], server[:, 1:3], counters, gpus, self._processes[:, places])
