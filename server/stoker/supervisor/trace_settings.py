"""Which requests are traced, as it can be changed while the server runs: those of all models, and of single ones.

How many more traces there are to be is counted where they are sent from, so it holds for all frontends together: they
are told to trace nothing more once it is used up, and what they had said by then is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from stoker.control.frontend_rules import Sampling
from stoker.metrics.traced import TracedRequest

__all__ = ["UNLIMITED", "TraceSettings", "rate_of"]

UNLIMITED: Final = -1
"""How many more traces there are to be where any number is."""


def rate_of(ratio: float) -> int:
    """Return of how many traces that begin here one is kept, about; 0 if none is."""
    return round(1 / ratio) if ratio else 0


@dataclass(slots=True)
class _Said:
    """What is said for one model, or for all; None where nothing is.

    Attributes:
        on: Whether anything is traced.
        rate: Of how many traces that begin here one is kept; 0 for none.
        left: How many more there are to be.
    """

    on: bool | None = None
    rate: int | None = None
    left: int | None = None

    @property
    def empty(self) -> bool:
        return all(getattr(self, one.name) is None for one in fields(self))


class TraceSettings:
    """Those of a server; for several threads.

    Args:
        ratio: The share of the traces beginning here that are kept where nothing else is said.
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = ratio
        self._all = _Said()
        self._models: dict[str, _Said] = {}
        self._lock = threading.Lock()

    @property
    def sampling(self) -> Sampling:
        """What frontends are to do."""
        with self._lock:
            return Sampling(
                self._share(self._all), {name: self._share(of) for name, of in self._models.items()}
            )

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Say something else from now on.

        Args:
            model: Of which model; empty for all that have nothing of their own.
            changes: Some of `on` (a boolean), `rate` and `left` (integers), as `described` has them. None takes back
                what was said: then a model does as all do, and all do as the server was started.
        """
        with self._lock:
            said = self._models.setdefault(model, _Said()) if model else self._all
            for name, value in changes.items():
                setattr(said, name, value)
            if model and said.empty:
                del self._models[model]

    def described(self, model: str) -> dict[str, Any]:
        """Return what holds for a model; for an empty name, for all that have nothing of their own."""
        with self._lock:
            said = self._models.get(model, self._all)
            rate = self._of(said, "rate")
            return {
                "on": self._of(said, "on") is not False,
                "rate": rate_of(self._ratio) if rate is None else rate,
                "left": self._left(said),
            }

    def admit(self, requests: Iterable[TracedRequest]) -> list[TracedRequest]:
        """Return those of traced requests that there are still to be traces of; they count then."""
        with self._lock:
            return [request for request in requests if self._take(request.model)]

    def _take(self, model: str) -> bool:
        said = self._models.get(model, self._all)
        counted = self._all if said.left is None else said
        if counted.left is None or counted.left == UNLIMITED:
            return True
        if counted.left == 0:
            return False
        counted.left -= 1
        return True

    def _share(self, said: _Said) -> float | None:
        if self._of(said, "on") is False or self._left(said) == 0:
            return None
        rate = self._of(said, "rate")
        if rate is None:
            return self._ratio
        return 1 / rate if rate else 0.0

    def _left(self, said: _Said) -> int:
        left: int | None = self._of(said, "left")
        return UNLIMITED if left is None else left

    def _of(self, said: _Said, name: str) -> Any:
        """A field of what is said for a model, or else for all."""
        value = getattr(said, name)
        return getattr(self._all, name) if value is None else value
