"""How often requests to each model are to be expected."""

from __future__ import annotations

from math import exp, expm1, log
from typing import Final

_HORIZONS_S: Final = tuple(120.0 * 8**step for step in range(5))
_EXPERTS: Final = 2 * len(_HORIZONS_S)
_REMEMBERED: Final = 500
"""Over so many observations the experts are judged."""
_LEAST_S: Final = 1.0
"""The first rates are those of a second."""


class _Marks:
    """Decaying request counts of a model, or of all, by expert.

    The first half, one for each horizon, count requests; the second half are 1 at each request, however many come.
    """

    __slots__ = ("_at_s", "_marks")

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._marks = [0.0] * _EXPERTS

    def at(self, now_s: float) -> list[float]:
        ago_s = self._at_s - now_s
        if ago_s >= 0:
            return self._marks
        kept = [exp(ago_s / horizon_s) for horizon_s in _HORIZONS_S]
        return [mark * part for mark, part in zip(self._marks, kept + kept, strict=True)]

    def set(self, marks: list[float], now_s: float) -> None:
        self._marks, self._at_s = marks, max(now_s, self._at_s)


class RequestRates:
    """Learns the request rate of each model.

    Experts predict which model comes next: for horizons from two minutes to six days, one by the number of a model's
    requests, and one by how long ago its last request was. Popularity that lasts needs a long memory, popularity that
    shifts a short one, and in bursts only the last request counts. Each expert has a weight by how well it has
    predicted the last few hundred observations, as in Bayesian model averaging.

    Args:
        now_s: When learning begins.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._models: dict[str, _Marks] = {}
        self._all = _Marks(now_s)
        self._evidence = [0.0] * _EXPERTS
        self._weights = [1 / _EXPERTS] * _EXPERTS
        self._known_at_s: float | None = None
        self._per_mark: list[float] = []

    def observe(self, name: str, requests: int, now_s: float) -> None:
        """Count requests to a model, those that had to wait for it included."""
        if requests <= 0:
            return
        model = self._models.get(name)
        known = model is not None
        if model is None:
            model = self._models[name] = _Marks(now_s)
        marks, of_all = model.at(now_s), self._all.at(now_s)
        if known:
            # Nothing could have predicted a first request.
            self._judge(marks, of_all)
        half = len(_HORIZONS_S)
        more = [float(requests)] * half + [1 - mark for mark in marks[half:]]
        model.set([mark + added for mark, added in zip(marks, more, strict=True)], now_s)
        self._all.set([mark + added for mark, added in zip(of_all, more, strict=True)], now_s)
        self._known_at_s = None

    def _judge(self, marks: list[float], of_all: list[float]) -> None:
        # One more request, of any model, counts as seen: no prediction is impossible.
        unseen = 1 / len(self._models)
        self._evidence = [
            evidence * (1 - 1 / _REMEMBERED) + log((mark + unseen) / (total + 1))
            for evidence, mark, total in zip(self._evidence, marks, of_all, strict=True)
        ]
        best = max(self._evidence)
        weights = [exp(evidence - best) for evidence in self._evidence]
        total = sum(weights)
        self._weights = [weight / total for weight in weights]

    def rate(self, name: str, now_s: float) -> float:
        """Return the expected requests per second of a model; 0 for one that had none."""
        model = self._models.get(name)
        if model is None:
            return 0.0
        if self._known_at_s != now_s:
            self._known_at_s, self._per_mark = now_s, self._rates_per_mark(now_s)
        return sum([mark * per_s for mark, per_s in zip(model.at(now_s), self._per_mark, strict=True)])

    def _rates_per_mark(self, now_s: float) -> list[float]:
        """Return the requests per second that a mark of each expert stands for, times the expert's weight."""
        since_s = self._since_s - now_s
        of_all = self._all.at(now_s)
        observed_s = [max(_LEAST_S, -horizon_s * expm1(since_s / horizon_s)) for horizon_s in _HORIZONS_S]
        return [
            weight * count / max(total, 1e-9) / seconds
            for weight, count, total, seconds in zip(
                self._weights, of_all[: len(_HORIZONS_S)] * 2, of_all, observed_s * 2, strict=True
            )
        ]

    def forget(self, name: str) -> None:
        """Drop a model that is no longer served."""
        self._models.pop(name, None)
