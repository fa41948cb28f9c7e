"""How long a device process may take to load its models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stoker.deployment import Deployed

__all__ = ["LoadTimer"]


class _Timer(Protocol):
    def cancel(self) -> None:
        """Let it not run out."""


class LoadTimer:
    """Tells when the model that a device process is loading takes longer than it may.

    Models are loaded one after the other. The time of each begins when the one before it is loaded, that of the first
    one when its process is started: what that imports belongs to loading.
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
        self._timer: _Timer | None = None
        self._begin()

    def next(self) -> None:
        """Take note that a model is loaded, and go on with the one behind it."""
        self._left.popleft()
        self._begin()

    def stop(self) -> None:
        """Nothing is loaded any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self.stop()
        if self._left:
            model = self._left[0]
            self._timer = self._call_later(model.load_timeout_s, lambda: self._on_late(model))
