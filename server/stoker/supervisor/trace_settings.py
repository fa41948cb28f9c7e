"""The choice of the requests that are traced, for all models and for single ones."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from stoker.control.frontend_messages import Sampling
from stoker.metrics.journal import TracedRequest

UNLIMITED: Final = -1
"""The value of the limit if there is none."""


def rate_of(ratio: float) -> int:
    """Return n if about one of n traces that begin here is kept; 0 if none is."""
    return round(1 / ratio) if ratio else 0


@dataclass(slots=True)
class _TraceSetting:
    """The settings for one model, or for all; None where a field is not set.

    Attributes:
        rate: One of this many traces that begin here is kept; 0 for none.
        left: How many further traces are kept.
    """

    on: bool | None = None
    rate: int | None = None
    left: int | None = None

    @property
    def empty(self) -> bool:
        return all(getattr(self, one.name) is None for one in fields(self))


class TraceSettings:
    """The trace settings of a server. May be used on several threads.

    Args:
        ratio: The share of traces beginning here that are kept if nothing else is set.
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = ratio
        self._all = _TraceSetting()
        self._models: dict[str, _TraceSetting] = {}
        self._lock = threading.Lock()

    @property
    def sampling(self) -> Sampling:
        """The sampling settings for frontends."""
        with self._lock:
            return Sampling(
                self._share(self._all), {name: self._share(of) for name, of in self._models.items()}
            )

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Change settings.

        Args:
            model: The model; empty for the settings of all models that have none of their own.
            changes: Some of `on` (a boolean), `rate` and `left` (integers), as in `described`. None removes a
                setting: a model then follows those for all models, and these follow the server's start.
        """
        with self._lock:
            setting = self._models.setdefault(model, _TraceSetting()) if model else self._all
            for name, value in changes.items():
                setattr(setting, name, value)
            if model and setting.empty:
                del self._models[model]

    def described(self, model: str) -> dict[str, Any]:
        """Return the settings that hold for a model.

        For an empty name, for all models without settings of their own.
        """
        with self._lock:
            setting = self._models.get(model, self._all)
            rate = self._of(setting, "rate")
            return {
                "on": self._of(setting, "on") is not False,
                "rate": rate_of(self._ratio) if rate is None else rate,
                "left": self._left(setting),
            }

    def admit(self, requests: Iterable[TracedRequest]) -> list[TracedRequest]:
        """Return those of the traced requests that are within the limit, and count them."""
        with self._lock:
            return [request for request in requests if self._take(request.model)]

    def _take(self, model: str) -> bool:
        setting = self._models.get(model, self._all)
        counted = self._all if setting.left is None else setting
        if counted.left is None or counted.left == UNLIMITED:
            return True
        if counted.left == 0:
            return False
        counted.left -= 1
        return True

    def _share(self, setting: _TraceSetting) -> float | None:
        if self._of(setting, "on") is False or self._left(setting) == 0:
            return None
        rate = self._of(setting, "rate")
        if rate is None:
            return self._ratio
        return 1 / rate if rate else 0.0

    def _left(self, setting: _TraceSetting) -> int:
        left: int | None = self._of(setting, "left")
        return UNLIMITED if left is None else left

    def _of(self, setting: _TraceSetting, name: str) -> Any:
        """A field of the model's settings, or otherwise of those for all models."""
        value = getattr(setting, name)
        return getattr(self._all, name) if value is None else value
