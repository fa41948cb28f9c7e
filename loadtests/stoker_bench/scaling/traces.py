"""Rows that arrive, second by second: seeded, so that each run has the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

__all__ = ["TRACES", "Trace"]

Trace = Callable[[int, np.random.Generator], np.ndarray]
"""From seconds and randomness to what is asked in each second, as pods that are fully at work: `float64[seconds]`."""


def steps(seconds: int, random: np.random.Generator) -> np.ndarray:
    """From 1 pod to 14, every ten minutes up or down."""
    del random
    return np.where(np.arange(seconds) // 600 % 2, 14.0, 0.6)


def noise(seconds: int, random: np.random.Generator) -> np.ndarray:
    """Around 200 pods, and no trend: fluctuations of 8 percent that last a minute."""
    around = np.zeros(seconds)
    for second in range(1, seconds):
        around[second] = around[second - 1] * (1 - 1 / 60) + random.normal(0, 0.08 * np.sqrt(2 / 60))
    return np.maximum(1.0, 200 * (1 + around))


def day(seconds: int, random: np.random.Generator) -> np.ndarray:
    """A day of 30 to 420 pods in the time of the trace, with bursts of half as much again that last two minutes."""
    phase = np.arange(seconds) / seconds * 2 * np.pi
    base = 225 - 195 * np.cos(phase)
    for begin in random.integers(0, seconds, size=max(1, seconds // 600)):
        base[begin : begin + 120] *= 1.5
    return base


def bursts(seconds: int, random: np.random.Generator) -> np.ndarray:
    """30 pods, and bursts at any time: of many sizes up to 600 pods, there within 5 s, gone after a minute or so."""
    asked = np.full(seconds, 30.0)
    at = np.arange(seconds)
    for begin in random.integers(0, seconds, size=max(1, seconds // 150)):
        height = min(600.0, 20 * (1 + random.pareto(1.0)))
        lasts_s = random.exponential(60)
        since = at - begin
        asked += (
            height * np.clip(since / 5, 0, 1) * np.exp(-np.maximum(0, since - 5) / lasts_s) * (since >= 0)
        )
    return np.asarray(np.minimum(700.0, asked))


def crowd(seconds: int, random: np.random.Generator) -> np.ndarray:
    """From 50 pods to 700 within 20 s, a third of the way in, and back over some minutes: all come at once."""
    del random
    since = np.arange(seconds) - seconds // 3
    return np.asarray(50 + 650 * np.clip(since / 20, 0, 1) * np.exp(-np.maximum(0, since - 120) / 300))


TRACES: Final[dict[str, Trace]] = {
    function.__name__: function for function in (steps, noise, day, bursts, crowd)
}
"""All of them, by name."""
