"""The periodic work of a frontend: time limits of requests, counters, and memory that is no longer used."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from stoker.gateway.scoring.freed_memory import TrimSchedule
from stoker.system.resources import trim_heap

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.service_manager import ServiceManager
    from stoker.metrics.memory import MetricPage

_SWEEP_S: Final = 0.025
_CHECK_S: Final = 1.0
"""How often memory left by large bodies, and shared memory that its owner has removed, are looked for."""


class Upkeep:
    """Sweeps the services forty times a second, and frees memory once a second."""

    def __init__(self, gateway: Gateway, services: ServiceManager, page: MetricPage) -> None:
        self._gateway = gateway
        self._services = services
        self._page = page
        self._loop = asyncio.get_running_loop()
        self._schedule = TrimSchedule(gateway.bodies)

    def start(self) -> None:
        """Begin; it goes on until the loop ends."""
        self._loop.call_later(_SWEEP_S, self._sweep)
        self._loop.call_later(_CHECK_S, self._free_memory)

    def _sweep(self) -> None:
        # Scheduled first, so that no error ends it: without it requests never time out and services never retire.
        self._loop.call_later(_SWEEP_S, self._sweep)
        self._page.beat()
        bodies = self._gateway.bodies
        self._page.set_large_bodies(bodies.held_bytes, bodies.total_bytes)
        self._services.sweep()
        if self._gateway.quotas is not None:
            self._gateway.quotas.refresh()

    def _free_memory(self) -> None:
        self._loop.call_later(_CHECK_S, self._free_memory)
        if (regions := self._gateway.regions) is not None:
            regions.remove_gone()
            if cold := regions.cold_devices():
                self._loop.run_in_executor(None, regions.cuda.prepare, cold)
        # Out of descriptors, it cannot look now and tries again later.
        with contextlib.suppress(OSError):
            if self._schedule.due():
                # In a thread: it takes milliseconds for each gigabyte.
                self._loop.run_in_executor(None, trim_heap)
