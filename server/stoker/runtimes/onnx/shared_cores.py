"""Batches of texts on a CPU: one that runs alone has all cores, those that run at the same time share them.

The threads of an operation wait for each other, so two batches with half of the cores each take less time than one
after the other with all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from stoker.arena import LONE_ROWS
from stoker.runtimes.onnx.session_tensors import SessionTensors
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.packed import Feeds, Run

_MOST_INSTANCES: Final = 4
"""With few cores each, a batch that does not run alone still takes not much longer."""


def share_cores(alone: Run, sessions: OnnxSessions) -> tuple[Run, int]:
    """Return a function for batches that share the threads of `alone`, and how many there may be at the same time.

    It is `alone` for models of other inputs than texts, and on a GPU.
    """
    deployment, threads = sessions.deployment, sessions.threads
    instances = deployment.instances or min(_MOST_INSTANCES, threads)
    if deployment.text is None or sessions.device.kind != "cpu" or min(threads, instances) == 1:
        return alone, 1
    shared = msgspec.structs.replace(sessions, threads=max(1, threads // instances), spins=False).open()
    return SharedCores(alone, SessionTensors(shared).run).run, instances


class SharedCores:
    """Runs batches of several instances.

    Between batches that overlap, one may begin alone. It shares the cores too: another one is about to begin.
    """

    def __init__(self, alone: Run, shared: Run) -> None:
        self._alone, self._shared = alone, shared
        self._lock, self._running, self._lone_batches = threading.Lock(), 0, LONE_ROWS

    def run(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one batch; raises what `SessionTensors.run` does."""
        with self._lock:
            self._running += 1
            self._lone_batches = 0 if self._running > 1 else self._lone_batches + 1
            run = self._alone if self._lone_batches > LONE_ROWS else self._shared
        try:
            return run(feeds)
        finally:
            with self._lock:
                self._running -= 1
