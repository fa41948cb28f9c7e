"""The periodic work of a supervisor beside its processes: readings for the metrics, traces, keys, worn processes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stoker.gpu.nvml import GpuReader
from stoker.keys.generation import Follower
from stoker.metrics.memory import MetricMemory
from stoker.settings.server import ServerSettings
from stoker.supervisor.background import Supervision, in_thread
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.recorder import Recorder
from stoker.supervisor.recycler import Recycler
from stoker.supervisor.stock import Stock
from stoker.supervisor.trace_sender import TraceSender
from stoker.supervisor.trials import Trials

_GPU_POLL_S: Final = 2.0
_STEP_S: Final = 1.0
"""The length of a step of the console's history."""
_LOOK_S: Final = 1.0
_TRIAL_S: Final = 2.0
_WORN_S: Final = 10.0


class Upkeep:
    """The periodic work of one supervisor."""

    def __init__(
        self,
        supervision: Supervision,
        fleet: Fleet,
        trials: Trials,
        recycler: Recycler,
        traces: TraceSender | None,
        live: LiveSettings,
    ) -> None:
        self._supervision, self._fleet = supervision, fleet
        self._trials, self._recycler = trials, recycler
        self._traces, self._live = traces, live
        self._gpus = GpuReader()
        self._follower: Follower | None = None

    def begin(self, settings: ServerSettings, stock: Stock, keys_dir: Path) -> None:
        """Begin all of it; background tasks end with the server.

        Args:
            stock: Has the keys whose generation the metrics show.
            keys_dir: The folder of keys that frontends read when they change; only followed if callers need keys.
        """
        metrics_fd, page = self._supervision.metrics_fd, self._supervision.page
        if settings.auth or settings.token_auth:
            self._follower = Follower(keys_dir, MetricMemory(metrics_fd).key_changes)
            self._follower.start()

        async def show_keys() -> bool:
            page.set_keys_generation(stock.keys.generation)
            return True

        repeat = self._supervision.background.repeat
        repeat("reading the GPUs", _GPU_POLL_S, self._read_gpus)
        repeat("looking for hung frontends", _LOOK_S, self._check_for_hung)
        repeat("showing which keys hold", _LOOK_S, show_keys)
        repeat("watching versions with weights", _TRIAL_S, self._trials.check)
        repeat("looking for worn device processes", _WORN_S, self._recycler.check)
        if settings.console:
            recorder = Recorder(metrics_fd, lambda: self._fleet.pids)
            repeat("recording the history of the console", _STEP_S, recorder.record)
        if self._traces is not None:
            self._traces.start()
            repeat("looking how many traces are left", _LOOK_S, self._check_traces)

    async def end(self) -> None:
        """Send the last traces, and follow the keys no more."""
        if self._traces is not None:
            await in_thread(self._traces.close)
        if self._follower is not None:
            await in_thread(self._follower.close)

    async def _check_for_hung(self) -> bool:
        stopping = self._supervision.background.stopping
        if not stopping:
            self._fleet.frontends.end_hung()
        return not stopping

    async def _check_traces(self) -> bool:
        self._live.notify_frontends()
        return True

    async def _read_gpus(self) -> bool:
        try:
            readings = await in_thread(self._gpus.read)
        except OSError:  # there is no driver
            return False
        self._supervision.page.set_gpus(readings)
        return True
