"""The time limit of each load in a device process."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from stoker.deployment import Deployment

logger = logging.getLogger(__name__)


_FIRST_SIGN_S: Final = 10


class _Timer(Protocol):
    def cancel(self) -> None:
        """Let it not run out."""


class LoadTimer:
    """Reports when a device process takes too long to load a model.

    Models are loaded one after the other. The time of each begins when the previous one is loaded, that of the
    first when the process is started, so it includes imports. While a load takes long, the log says so at growing
    intervals.
    """

    def __init__(
        self,
        models: Sequence[Deployment],
        on_late: Callable[[Deployment], None],
        call_later: Callable[[float, Callable[[], None]], _Timer],
    ) -> None:
        self._left = deque(models)
        self._on_late = on_late
        self._call_later = call_later
        self._timers: list[_Timer] = []
        self._begin()

    @property
    def is_last(self) -> bool:
        """Whether no model waits for the one that is being loaded."""
        return len(self._left) == 1

    @property
    def current(self) -> Deployment | None:
        """The model that is being loaded; None when all are."""
        return self._left[0] if self._left else None

    def add(self, model: Deployment) -> None:
        """Expect another model to be loaded after the others."""
        self._left.append(model)
        if len(self._left) == 1:
            self._begin()

    def next(self) -> None:
        """Record that a model is loaded or has failed, and continue with the next one."""
        self._left.popleft()
        self._begin()

    def stop(self) -> None:
        """Stop; nothing is being loaded any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _begin(self) -> None:
        self.stop()
        if self._left:
            model = self._left[0]
            self._timers = [self._call_later(model.load_timeout_s, lambda: self._on_late(model))]
            self._tell_later(model, 0, _FIRST_SIGN_S)

    def _tell_later(self, model: Deployment, elapsed_s: int, then_s: int) -> None:
        """Log after `then_s` seconds of loading that it is still in progress."""

        def tell() -> None:
            logger.info("%s version %d has been loading for %d s", model.name, model.version, then_s)
            self._tell_later(model, then_s, 2 * then_s)

        if then_s < model.load_timeout_s:
            # The delay that was waited for has passed.
            self._timers[1:] = [self._call_later(then_s - elapsed_s, tell)]
