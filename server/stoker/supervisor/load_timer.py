"""How long a device process may take to load its models."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from stoker.models.deployed import Deployed

__all__ = ["LoadTimer"]

logger = logging.getLogger(__name__)

_FIRST_SIGN_S: Final = 10


class _Timer(Protocol):
    def cancel(self) -> None:
        """Let it not run out."""


class LoadTimer:
    """Tells when the model that a device process is loading takes longer than it may.

    Models are loaded one after the other. The time of each begins when the one before it is loaded, that of the first
    one when its process is started: what that imports belongs to loading. The log has signs of life of one that takes
    long, at growing distances.
    """

    def __init__(
        self,
        models: Sequence[Deployed],
        on_late: Callable[[Deployed], None],
        call_later: Callable[[float, Callable[[], None]], _Timer],
    ) -> None:
        """Begin with the first model.

        Args:
            models: What the process loads, in this order.
            on_late: Called with the model whose time is up.
            call_later: Calls a function after some seconds; an event loop does.
        """
        self._left = deque(models)
        self._on_late = on_late
        self._call_later = call_later
        self._timers: list[_Timer] = []
        self._begin()

    @property
    def current(self) -> Deployed | None:
        """The model that is being loaded; None when all are."""
        return self._left[0] if self._left else None

    def next(self) -> None:
        """Record that a model is loaded, or failed, and go on with the one behind it."""
        self._left.popleft()
        self._begin()

    def stop(self) -> None:
        """Nothing is loaded any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _begin(self) -> None:
        self.stop()
        if self._left:
            model = self._left[0]
            self._timers = [self._call_later(model.terms.load_timeout_s, lambda: self._on_late(model))]
            self._tell_later(model, 0, _FIRST_SIGN_S)

    def _tell_later(self, model: Deployed, elapsed_s: int, then_s: int) -> None:
        """When `then_s` have passed since the load began, say so if it goes on."""

        def tell() -> None:
            servable = model.servable
            logger.info("%s version %d has been loading for %d s", servable.name, servable.version, then_s)
            self._tell_later(model, then_s, 2 * then_s)

        if then_s < model.terms.load_timeout_s:
            # The one that was waited for has passed.
            self._timers[1:] = [self._call_later(then_s - elapsed_s, tell)]
