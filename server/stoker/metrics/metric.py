"""A metric: the words of shared memory that count it, how processes' words add up, and how `/metrics` shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, product
from typing import ClassVar, Literal, ParamSpec

import numpy as np
from msgspec import Struct

_P = ParamSpec("_P")

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "latest", "lowest"]
Words = Sequence[int] | np.ndarray
Key = tuple[str, ...]
"""A value of each label."""


class HistogramTotals(Struct, frozen=True):
    """Counts per bucket (not cumulative; the last one is +Inf), and the sum of the observations."""

    bounds: Sequence[float]
    counts: list[int]
    sum: float

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus expects them."""
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))

    def __bool__(self) -> bool:
        """Whether anything was observed."""
        return any(self.counts)


Value = float | HistogramTotals


def if_counted(_words: Words, _key: Key, value: Value) -> bool:
    """Show only what was counted."""
    return bool(value)


def if_any(*metrics: Metric) -> Callable[[Words, Key, Value], bool]:
    """Return the rule that shows a metric where one of these has counted."""
    return lambda words, _key, _value: not all(metric.is_zero(words) for metric in metrics)


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric, and its run of int64 words within a model slot or a page (decision 6).

    Attributes:
        name: Its name at `/metrics`, without `_total`; empty if it is not shown there.
        labels: The values of each label beside model and version; none where they are learned at a scrape.
        bounds: Upper bounds of a histogram's buckets; it has a word for each, one for +Inf, and one for the sum.
        unit: How many counted units one shown unit has: 1e9 for seconds that are counted in nanoseconds.
        merge: How the words of several processes become one; 0 counts for none in `lowest`.
        is_lasting: Whether a gauge stays when another process takes over the page.
        is_shown: Whether a value is shown, by the words of its slot or page, the values of its labels, and the value.
        triton: Triton's name of the same quantity.
        words: The number of its words; 0 stands for one for each value of the labels, or for each histogram.
        offset: Index of its first word.
    """

    kind: ClassVar[Kind]
    name: str
    help: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bounds: Sequence[float] = ()
    unit: float = 1
    merge: Merge = "sum"
    is_lasting: bool = False
    is_shown: Callable[[Words, Key, Value], bool] = lambda _words, _key, _value: True
    triton: str = ""
    words: int = 0
    offset: int = 0

    @property
    def end(self) -> int:
        """Index of the word after the last one."""
        return self.offset + self.words

    @property
    def width(self) -> int:
        """Number of words for each value of the labels."""
        return len(self.bounds) + 2 if self.bounds else 1

    @cached_property
    def places(self) -> dict[Key, int]:
        """The index of the first word for each value of the labels."""
        return {
            key: self.offset + self.width * place for place, key in enumerate(product(*self.labels.values()))
        }

    def word(self, *key: str) -> int:
        """Return the index of the first word for these values of the labels."""
        return self.places[key]

    def counts(self, words: Words) -> list[int]:
        """Return its numbers as they are counted."""
        return list(map(int, words[self.offset : self.end]))

    def is_zero(self, words: Words) -> bool:
        """Whether nothing was counted."""
        return not any(words[self.offset : self.end])

    def histogram(self, words: Words, *key: str) -> HistogramTotals:
        """Return the histogram for these values of the labels."""
        start = self.word(*key)
        *counts, total = map(int, words[start : start + self.width])
        return HistogramTotals(self.bounds, counts, total / self.unit)

    def values(self, words: Words) -> dict[Key, Value]:
        """Return the values that are shown, by the values of the labels."""
        if self.bounds:
            values: dict[Key, Value] = {key: self.histogram(words, *key) for key in self.places}
        else:
            numbers = (count if self.unit == 1 else count / self.unit for count in self.counts(words))
            values = dict(zip(self.places, numbers, strict=True))
        return {key: value for key, value in values.items() if self.is_shown(words, key, value)}


class Counter(Metric):
    """A number that only grows."""

    kind = "counter"


class Gauge(Metric):
    """A number that holds now."""

    kind = "gauge"


class Histogram(Metric):
    """Observations, counted by bucket."""

    kind = "histogram"


class Region:
    """The words of a model slot or of a page; each metric takes the next free ones."""

    def __init__(self, start: int = 0) -> None:
        self.end = start
        self.metrics: list[Metric] = []

    def take(self, metric: Metric) -> Metric:
        """Return the metric with its place."""
        placed = replace(metric, offset=self.end, words=metric.words or metric.width * len(metric.places))
        self.metrics.append(placed)
        self.end = placed.end
        return placed

    def words_that(self, condition: Callable[[Metric], bool]) -> list[int]:
        """Return the indices of the words of the metrics that meet a condition."""
        return [
            word for metric in self.metrics if condition(metric) for word in range(metric.offset, metric.end)
        ]


def declare_in(region: Region, make: Callable[_P, Metric]) -> Callable[_P, Metric]:
    """Return a function like `make` whose metrics take words of a region."""

    def declare(*args: _P.args, **kwargs: _P.kwargs) -> Metric:
        """Return the metric with its place."""
        return region.take(make(*args, **kwargs))

    return declare
