"""Counters in shared memory, one page per process.

All processes of a server map one memfd. It is divided into pages; each process alone writes its own page, and any
frontend adds the pages up at scrape. So counting is an integer addition without locks or messages, and counters
survive the process: its successor takes over the page and continues.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.gpu.facts import GpuReading
from stoker.metrics import layout, table
from stoker.metrics.counters import CallerCounts, CallerUsage, ModelMetrics
from stoker.metrics.journal import TRACES_END
from stoker.metrics.metric import Merge
from stoker.metrics.totals import ModelTotals, Totals

_NO_LOW: Final = (1 << 63) - 1
_CONNECTION_WORDS: Final = {
    protocol: (table.OPEN_CONNECTIONS.word(protocol), table.SHARES_CONNECTIONS.word(protocol))
    for protocol in layout.PROTOCOLS
}
_SIZES: Final = np.arange(table.BATCH_TIMES.words)


def _words_merged_by(merge: Merge) -> np.ndarray:
    """Return the indices of the words of all slots and of the page that several processes' words become one so."""
    of_slot = table.SLOT.words_that(lambda metric: metric.merge == merge)
    slots = np.arange(layout.MODEL_SLOTS)[:, np.newaxis] * table.SLOT_WORDS
    return np.append(slots + of_slot, table.PAGE.words_that(lambda metric: metric.merge == merge)).astype(int)


_LATEST: Final = _words_merged_by("latest")
_LOWEST: Final = _words_merged_by("lowest")


class MetricMemory:
    """The shared memory with all pages.

    After the pages it marks which of them are in use, because reading an unused page would allocate memory for it.

    Attributes:
        key_changes: A number, the last one of the memory, that the supervisor raises when a key changes; frontends
            compare it before they verify one.
    """

    def __init__(self, fd: int) -> None:
        """Map a file made by `create`; `fd` may be closed afterwards."""
        self._memory = mmap.mmap(fd, table.MEMORY_BYTES)
        words = np.frombuffer(self._memory, np.int64)
        self._pages = words[: table.PAGES_BYTES // 8].reshape(layout.PAGES, -1)
        self._used = words[table.PAGES_BYTES // 8 :][: layout.PAGES]
        self.key_changes = memoryview(self._memory)[table.MEMORY_BYTES - 8 : table.MEMORY_BYTES].cast("q")

    @staticmethod
    def create() -> int:
        """Create the shared-memory file and return its file descriptor."""
        fd = os.memfd_create("stoker-metrics", os.MFD_CLOEXEC)
        os.truncate(fd, TRACES_END)
        return fd

    def page(self, index: int) -> MetricPage:
        """The page of the process with this index."""
        if not 0 <= index < layout.PAGES:
            raise ValueError(f"there are {layout.PAGES} metric pages, got index {index}")
        self._used[index] = 1
        words = memoryview(self._memory)[index * table.PAGE_BYTES :][: table.PAGE_BYTES].cast("q")
        return MetricPage(words, self.key_changes)

    def _pages_in_use(self) -> np.ndarray:
        """The numbers of the pages that processes use: `int64[pages]`."""
        # numpy counts first and raises an error if there are more a moment later: processes start at any time.
        return np.flatnonzero(self._used.copy())

    def totals(self) -> Totals:
        """Return the sum of all pages now; of times the latest, of caps and expiries the lowest."""
        words = self._pages[self._pages_in_use()]
        totals = words.sum(axis=0)
        totals[_LATEST] = words[:, _LATEST].max(axis=0, initial=0)
        # 0 is of pages whose process has none.
        lows = np.where(words[:, _LOWEST], words[:, _LOWEST], _NO_LOW).min(axis=0, initial=_NO_LOW)
        totals[_LOWEST] = np.where(lows == _NO_LOW, 0, lows)
        return Totals(totals)

    def model_totals(self, slot: int) -> ModelTotals:
        """Return the sum of one slot over all pages, like `totals` but much faster, without timestamps and caps."""
        return ModelTotals(self._slot(slot).sum(axis=0))

    def _slot(self, slot: int) -> np.ndarray:
        return self._pages[self._pages_in_use(), slot * table.SLOT_WORDS : (slot + 1) * table.SLOT_WORDS]

    def capacities_rows_s(self, slot: int | None = None) -> np.ndarray:
        """Return the throughput of the device processes with full batches, in rows per second: `float64[slots]`.

        It is 0 where no batch has run. Where no full batch has run, it is that of the largest one, which is too low.
        With `slot`, only that slot is computed: `float64[1]`.
        """
        if slot is None:
            pages = self._pages[self._pages_in_use(), : layout.MODEL_SLOTS * table.SLOT_WORDS]
            slots = pages.reshape(-1, layout.MODEL_SLOTS, table.SLOT_WORDS)
        else:
            slots = self._slot(slot)[:, np.newaxis]
        times_ns = slots[..., table.BATCH_TIMES.offset : table.BATCH_TIMES.end]
        caps = slots[..., table.BATCH_CAP_ROWS.offset, np.newaxis]
        # The fewest rows that a batch of each size class can have; the class of the cap counts as full.
        below_cap = np.frexp(caps)[1] - _SIZES
        rows = np.where(below_cap == 0, caps, (1 << _SIZES) >> 1)
        known = (times_ns > 0) & (below_cap >= 0)
        largest = np.where(known, _SIZES, 0).argmax(axis=-1, keepdims=True)
        rates = np.divide(rows * 1e9, times_ns, out=np.zeros(times_ns.shape), where=known)
        per_page = np.take_along_axis(rates, largest, axis=-1)[..., 0]
        return np.asarray(per_page.sum(axis=0))

    def batch_times(self, slot: int) -> dict[int, tuple[float, float]]:
        """Learned batch times of a slot: mean rows and seconds, by the fewest rows of each power of two."""
        pages = self._slot(slot)
        times_ns = pages[:, table.BATCH_TIMES.offset : table.BATCH_TIMES.end]
        sizes = pages[:, table.BATCH_SIZES.offset : table.BATCH_SIZES.end]
        known = times_ns > 0
        return {
            1 << (size - 1): (
                float(sizes[known[:, size], size].mean()) / 1000,
                float(times_ns[known[:, size], size].mean()) / 1e9,
            )
            for size in np.flatnonzero(known.any(axis=0)).tolist()
            if size
        }

    def busy_s(self) -> dict[str, np.ndarray]:
        """Device time of batches in seconds, by device and slot: `float64[slots]` each.

        That of a process that sees several GPUs counts for each of them.
        """
        words = self._pages[self._pages_in_use()]
        devices = words[:, table.DEVICE.offset]
        slots = words[:, : layout.MODEL_SLOTS * table.SLOT_WORDS].reshape(
            -1, layout.MODEL_SLOTS, table.SLOT_WORDS
        )
        busy_s = slots[..., table.BUSY.offset] / 1e9
        used = int(np.bitwise_or.reduce(devices)) if len(devices) else 0
        return {
            "cpu" if bit == 0 else f"cuda:{bit - 1}": busy_s[(devices >> bit) & 1 == 1].sum(axis=0)
            for bit in range(used.bit_length())
            if used >> bit & 1
        }

    def caller_usage(self) -> CallerUsage:
        """Counts per caller over all processes; the returned object can be read repeatedly."""
        return CallerUsage(self._pages, self._pages_in_use)

    def clear_model(self, slot: int) -> None:
        """Zero the counters of a slot in all pages; no process may write to them any more."""
        for index in self._pages_in_use():
            self._pages[index, slot * table.SLOT_WORDS : (slot + 1) * table.SLOT_WORDS] = 0


class MetricPage:
    """One process's page. Only that process writes it, except `add_connections` and `clear_connections`."""

    def __init__(self, words: memoryview, key_changes: memoryview) -> None:
        self._words = words
        self.key_changes = key_changes
        self.callers = CallerCounts(words)

    def model(self, slot: int) -> ModelMetrics:
        """The counters of the model with this slot."""
        return ModelMetrics(self._slot(slot), self.callers)

    def move_model(self, metrics: ModelMetrics, slot: int) -> None:
        """Let a model count in this slot from now on."""
        metrics.move(self._slot(slot))

    def _slot(self, slot: int) -> memoryview:
        if not 0 <= slot < layout.MODEL_SLOTS:
            raise ValueError(f"at most {layout.MODEL_SLOTS} models can be served at once")
        return self._words[slot * table.SLOT_WORDS : (slot + 1) * table.SLOT_WORDS]

    def count_restart(self, process: str) -> None:
        """Count a restart of a `device` or `frontend` process."""
        self._words[table.RESTARTS.word(process)] += 1

    def count_accept_failure(self) -> None:
        """Count a connection that was not accepted for lack of file descriptors."""
        self._words[table.ACCEPT_FAILURES.offset] += 1

    def set_connections(self, protocol: str, count: int, *, accepts: bool) -> None:
        """Set a frontend's number of open connections, and whether it accepts those of other frontends."""
        open_word, shares_word = _CONNECTION_WORDS[protocol]
        self._words[open_word], self._words[shares_word] = count, accepts

    def add_connections(self, protocol: str, count: int) -> None:
        """Add connections handed to this frontend; it sets the actual number when it has received them."""
        self._words[_CONNECTION_WORDS[protocol][0]] += count

    def connections(self, protocol: str) -> int | None:
        """Number of open connections of this frontend; None if it accepts none."""
        open_word, shares_word = _CONNECTION_WORDS[protocol]
        return int(self._words[open_word]) if self._words[shares_word] else None

    def clear_connections(self) -> None:
        """Zero the connections of a process that has ended."""
        for protocol in layout.PROTOCOLS:
            self.set_connections(protocol, 0, accepts=False)

    def set_certificate_expiry(self, protocol: str, expires_s: int) -> None:
        """Set when the certificate that this frontend shows expires, in seconds since 1970."""
        self._words[table.CERTIFICATE_EXPIRIES.word(protocol)] = expires_s

    def count_handshake_failure(self, protocol: str, reason: str) -> None:
        """Count a TLS handshake that failed, for one of `HANDSHAKE_FAILURES`."""
        self._words[table.HANDSHAKE_FAILED.word(protocol, reason)] += 1

    def set_large_bodies(self, held_bytes: int, budget_bytes: int) -> None:
        """Set how many bytes of large bodies this frontend holds, and its limit."""
        self._words[table.LARGE_BODY_BYTES.offset] = held_bytes
        self._words[table.LARGE_BODY_BUDGET.offset] = budget_bytes

    def set_keys_generation(self, generation: int) -> None:
        """Set the generation of the current keys."""
        self._words[table.KEYS_GENERATION.offset] = generation

    def count_traces(self, sent: int, dropped: int) -> None:
        """Count requests whose spans were sent, and those whose spans were dropped."""
        self._words[table.TRACES.word("sent")] += sent
        self._words[table.TRACES.word("dropped")] += dropped

    def set_device(self, *gpus: int) -> None:
        """Set the GPUs on which this process computes; none for the CPU. Each has a bit above that of the CPU."""
        self._words[table.DEVICE.offset] = sum(2 << gpu for gpu in gpus) or 1

    def beat(self) -> None:
        """Count a heartbeat of the process's event loop."""
        self._words[table.BEATS.offset] += 1

    @property
    def beats(self) -> int:
        """Number of heartbeats, over all processes that have had the page."""
        return int(self._words[table.BEATS.offset])

    def note_wait(self, wait_ns: int) -> None:
        """Count a request that has waited for its model to be loaded."""
        self._words[table.WAITS.offset] += 1
        self._words[table.WAIT_TIMES.offset] += wait_ns // 1000

    def note_load(self, load_s: float) -> None:
        """Count a load on demand, and how long it took."""
        self._words[table.LOADS.offset] += 1
        self._words[table.LOAD_TIMES.offset] += round(load_s * 1e6)

    def set_model_memory(self, budget_bytes: int, used_bytes: int, *, on_gpus: bool = False) -> None:
        """Set the budget of memory for models, over all devices, and how much of it is used."""
        self._words[table.MODEL_MEMORY_BUDGET.offset] = budget_bytes
        self._words[table.MODEL_MEMORY.offset] = used_bytes
        self._words[table.MODEL_MEMORY_ON_GPUS.offset] = on_gpus

    def count_eviction(self, reason: str) -> None:
        """Count a model that was unloaded for one of `EVICTIONS`."""
        self._words[table.EVICTED.word(reason)] += 1

    def set_gpus(self, readings: Sequence[GpuReading]) -> None:
        """Set the gauges of GPUs; those that were not read are cleared, and GPUs beyond the 16th are ignored."""
        words = array("q", bytes(8 * table.GPUS.words))
        for reading in readings:
            if reading.index < layout.DEVICE_SLOTS:
                start = reading.index * GpuReading.WORDS
                words[start : start + GpuReading.WORDS] = array("q", reading.to_words())
        self._words[table.GPUS.offset : table.GPUS.end] = memoryview(words)
