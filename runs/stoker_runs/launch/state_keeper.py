"""The state of a run in its runner's memory and in the run's folder."""

from __future__ import annotations

import logging
from typing import Final

from stoker_runs.launch.runners import Clock
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import Collected, Observation, RunState, next_state

_LOG: Final = logging.getLogger(__name__)


class StateKeeper:
    """Changes the state of a run by observations, and writes each change.

    Attributes:
        is_unwritten: Whether the last change is still to be written, because the disk had no room for it.
    """

    def __init__(self, folder: RunFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self.state: RunState = folder.state()
        self.is_unwritten = False

    def apply(self, observation: Observation) -> None:
        """Change the state by an observation, and write it if it is another one."""
        following = next_state(self.state, observation, self._clock.now_ms())
        if following != self.state:
            self.state = following
            self.write()

    def write(self) -> bool:
        """Write the state; return False if that fails, which ends neither the script nor its runner."""
        try:
            self._folder.write_state(self.state)
        except OSError as error:
            _LOG.warning("the state cannot be written: %s", error)
            self.is_unwritten = True
        else:
            self.is_unwritten = False
        return not self.is_unwritten


def end_run(folder: RunFolder, observation: Observation, now_ms: int) -> None:
    """Bring a run to its end whose files are all there, for the holder of its lock."""
    state = next_state(folder.state(), observation, now_ms)
    folder.write_state(next_state(state, Collected(), now_ms))
