"""How often requests to each model are to be expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log
from typing import Final

_HORIZONS_S: Final = (600.0, 3600.0, 6 * 3600.0, 36 * 3600.0, 216 * 3600.0)
_REMEMBERED: Final = 500
"""Over so many observations the horizons are judged."""
_LEAST_S: Final = 1.0
"""The first rates are those of a second."""


def _decay(elapsed_s: float) -> tuple[float, ...]:
    return tuple(exp(-max(0.0, elapsed_s) / horizon_s) for horizon_s in _HORIZONS_S)


@dataclass(slots=True)
class _Counts:
    """Requests that count less the older they are, by horizon."""

    at_s: float
    counts: list[float] = field(default_factory=lambda: [0.0] * len(_HORIZONS_S))

    def at(self, now_s: float) -> list[float]:
        return [count * kept for count, kept in zip(self.counts, _decay(now_s - self.at_s), strict=True)]

    def add(self, requests: int, now_s: float) -> None:
        self.counts = [count + requests for count in self.at(now_s)]
        self.at_s = now_s


class RequestRates:
    """Learns the request rate of each model over horizons from ten minutes to nine days.

    Popularity that lasts needs a long memory, popularity that shifts a short one. The horizon that has best predicted
    which model comes next counts most: weights are those of Bayesian averaging over some hundred observations.

    Args:
        now_s: When learning begins.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._models: dict[str, _Counts] = {}
        self._all = _Counts(now_s)
        self._evidence = [0.0] * len(_HORIZONS_S)
        self._weights = [1 / len(_HORIZONS_S)] * len(_HORIZONS_S)

    def observe(self, name: str, requests: int, now_s: float) -> None:
        """Count requests to a model, those that had to wait for it included."""
        if requests <= 0:
            return
        model = self._models.get(name)
        if model is None:
            # Nothing has predicted a first request.
            model = self._models[name] = _Counts(now_s)
        else:
            self._judge(model, now_s)
        model.add(requests, now_s)
        self._all.add(requests, now_s)

    def _judge(self, model: _Counts, now_s: float) -> None:
        # One more request, of any model, counts as seen: no prediction is impossible.
        unseen = 1 / len(self._models)
        self._evidence = [
            evidence * (1 - 1 / _REMEMBERED) + log((count + unseen) / (of_all + 1))
            for evidence, count, of_all in zip(
                self._evidence, model.at(now_s), self._all.at(now_s), strict=True
            )
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
        observed = _decay(now_s - self._since_s)
        return sum(
            weight * count / max(_LEAST_S, horizon_s * (1 - kept))
            for weight, count, horizon_s, kept in zip(
                self._weights, model.at(now_s), _HORIZONS_S, observed, strict=True
            )
        )

    def forget(self, name: str) -> None:
        """Drop a model that is no longer served."""
        self._models.pop(name, None)
