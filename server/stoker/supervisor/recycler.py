"""Device processes that are worn are recycled: their models move to others, and they end (decision 62)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from stoker.errors import OperatorError
from stoker.supervisor.device_processes import DeviceProcesses
from stoker.supervisor.rollout import Rollout

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 600.0


class Recycler:
    """Moves the models of worn processes, one after the other, as a new version takes over from an old one."""

    def __init__(
        self, devices: DeviceProcesses, rollout: Rollout, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices, self._rollout, self._clock_s = devices, rollout, clock_s
        self._not_before_s = 0.0

    async def check(self) -> bool:
        """Recycle a process that is worn; returns True, for the next call.

        If a model cannot move, it stays, and is tried again after ten minutes.
        """
        if self._clock_s() < self._not_before_s:
            return True
        process = self._devices.find_worn()
        if process is None:
            return True
        logger.warning(
            "a device process with %d models is recycled: %s", len(process.group.members), process.closed
        )
        for model in process.group.models:
            # It may have ended and be new, or the model may be gone.
            if not process.closed or not process.group.has(model.number):
                continue
            try:
                await self._rollout.move(model)
            except (OperatorError, OSError) as error:
                logger.error("%s version %d cannot move: %s", model.name, model.version, error)  # noqa: TRY400
        if process.closed and not process.ended:
            self._not_before_s = self._clock_s() + _AGAIN_S
        return True
