"""Requests merged into one: their rows become one body, `run` is called once, its result is split by row counts.

Contract of `MergedCalls.answers`:

- Each request gets the answer that it would get alone, up to rounding: a merged call that raises, or whose result
  does not show which part is whose, is made again in halves, at last for each request alone. So only what fails alone
  fails.
- `run` may therefore see the same rows several times.
- Requests are merged only with those of the same kind: the same content type, the same types of values in the rows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import ScoringTimeout
from stoker.scripts.environment import known_json
from stoker.scripts.invocation import ScriptCalls
from stoker.system.logs import requests_in_log
from stoker.wire.script_requests import MERGED_BYTES, ScriptAnswer, ScriptRequest, merge, row_texture

logger = logging.getLogger(__name__)

_COMPACT: Final = (",", ":")
_WRITERS: Final[tuple[Callable[[Any], str], ...]] = (
    json.dumps,
    partial(json.dumps, separators=_COMPACT),
    partial(json.dumps, ensure_ascii=False),
    partial(json.dumps, ensure_ascii=False, separators=_COMPACT),
    lambda value: orjson.dumps(value).decode(),
    partial(json.dumps, indent=2),
    partial(json.dumps, indent=4),
)
"""How scripts write JSON themselves."""


class Unsplittable(ValueError):
    """A result does not show which part of it belongs to which rows."""


class MergedCalls:
    """Calls a script once for the rows of several requests."""

    def __init__(self, calls: ScriptCalls, *, key: str, max_rows: int) -> None:
        """Merge requests whose bodies have the same key.

        Args:
            max_rows: Most rows in one call; a request with more is run by itself.
        """
        self._calls = calls
        self._key = key
        self._max_rows = max_rows

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests; those with `rows` = 0 by themselves. Never raises what the script raises."""
        answers: dict[int, ScriptAnswer] = {}
        for places in self.batches(requests):
            found = self._score([requests[place] for place in places])
            answers.update(zip(places, found, strict=True))
        return [answers[place] for place in range(len(requests))]

    def together(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests in one call.

        Raises:
            Unsplittable: The result cannot be split.
            Exception: What the call raised.
        """
        merged = ScriptRequest(
            b"", merge([request.body for request in requests], self._key), head=requests[0].head
        )
        ids = [request.request_id for request in requests]
        with requests_in_log(*ids), known_json(merged.body):
            arguments = self._calls.arguments(merged)
            begun_ns = time.perf_counter_ns()
            result = self._calls.invoke(arguments)
            exec_ns = time.perf_counter_ns() - begun_ns
            parts = split(result, [request.rows for request in requests])
            return [self._calls.encode(part, exec_ns) for part in parts]

    def batches(self, requests: Sequence[ScriptRequest]) -> Iterator[list[int]]:
        """Return, in groups, the places of requests that are called together."""
        kinds: dict[Hashable, list[int]] = {}
        for place, request in enumerate(requests):
            kinds.setdefault(_kind(request) if request.rows else place, []).append(place)
        for places in kinds.values():
            company: list[int] = []
            rows = size_bytes = 0
            for place in places:
                request = requests[place]
                rows += request.rows
                size_bytes += len(request.body)
                if company and (rows > self._max_rows or size_bytes > MERGED_BYTES):
                    yield company
                    company, rows, size_bytes = [], request.rows, len(request.body)
                company.append(place)
            yield company

    def _score(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        def together(company: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
            return [
                self._alone(request) if answer.failed else answer
                for request, answer in zip(company, self.together(company), strict=True)
            ]

        return score_in_halves(requests, together, self._alone, self._calls.refusal)

    def _alone(self, request: ScriptRequest) -> ScriptAnswer:
        with known_json(request.body) if request.rows else nullcontext():
            return self._calls.answer(request)


def score_in_halves(
    requests: Sequence[ScriptRequest],
    together: Callable[[Sequence[ScriptRequest]], list[ScriptAnswer]],
    alone: Callable[[ScriptRequest], ScriptAnswer],
    refuse: Callable[[Exception, ScriptRequest], ScriptAnswer],
) -> list[ScriptAnswer]:
    """Score requests in one call, or, if that fails, in the calls of each half.

    Args:
        together: Scores several requests in one call; raises whatever that raises.
        alone: Scores one request; never raises.
        refuse: Returns the answer for a request whose call took too long.
    """
    if len(requests) == 1:
        return [alone(requests[0])]
    try:
        return together(requests)
    except ScoringTimeout as error:
        # They have waited for as long as they may; there is no time left to try it again.
        with requests_in_log(*(request.request_id for request in requests)):
            return [refuse(error, request) for request in requests]
    except Exception as error:  # noqa: BLE001  # whoever is to blame is found below
        logger.debug("a call for %d requests failed: %r", len(requests), error)
    halves = requests[: len(requests) // 2], requests[len(requests) // 2 :]
    return [answer for half in halves for answer in score_in_halves(half, together, alone, refuse)]


def _kind(request: ScriptRequest) -> Hashable:
    head = request.head
    if head is None:
        return row_texture(request.body)
    types = tuple(value for name, value in head.headers if name.lower() == "content-type")
    return (head.method, types, *row_texture(request.body))


def split(result: Any, counts: Sequence[int]) -> list[Any]:
    """Divide what `run` returned for rows of several requests.

    A list, tuple or numpy array has one entry for each row. In a dict every list belongs to the rows, except empty
    ones, and all requests get what is no list. A string that holds the JSON of such a result is read, divided and
    written as it was.

    Returns:
        Per request what `run` would have returned for its rows.

    Raises:
        Unsplittable: It is none of these, or has another number of entries than rows.
    """
    bounds = list(pairwise(accumulate(counts, initial=0)))
    if isinstance(result, str):
        value, write = _read(result)
        return [write(part) for part in _divide(value, bounds, "the result")]
    return _divide(result, bounds, "the result")


def _divide(value: Any, bounds: Sequence[tuple[int, int]], name: str) -> list[Any]:
    rows = bounds[-1][1]
    if isinstance(value, dict):
        parts = _divide_dict(value, bounds, name)
        if parts is None:
            raise Unsplittable(f"{name} is a dict without anything for each row")
        return parts
    if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and not value.ndim):
        raise Unsplittable(f"{name} is {type(value).__name__}, which has no entry for each row")
    if len(value) != rows:
        raise Unsplittable(f"{name} has {len(value)} entries for {rows} rows")
    return [value[start:stop] for start, stop in bounds]


def _divide_dict(
    value: dict[Any, Any], bounds: Sequence[tuple[int, int]], name: str
) -> list[dict[Any, Any]] | None:
    """Divide what belongs to the rows, and give the rest to all; None if nothing belongs to the rows."""
    parts: list[dict[Any, Any]] = [{} for _ in bounds]
    divided = False
    for key, item in value.items():
        shares: list[Any] | None = None
        if isinstance(item, dict):
            shares = _divide_dict(item, bounds, f"{name}[{key!r}]")
        elif not _is_single(item):
            shares = _divide(item, bounds, f"{name}[{key!r}]")
        divided = divided or shares is not None
        for part, share in zip(parts, shares or [item] * len(bounds), strict=True):
            part[key] = share
    return parts if divided else None


def _is_single(value: Any) -> bool:
    # There is at least one row, so an empty list belongs to none.
    empty = isinstance(value, list | tuple) and not value
    return value is None or empty or isinstance(value, bool | int | float | str | np.generic)


def _read(text: str) -> tuple[Any, Callable[[Any], str]]:
    """Read JSON, and find out how it was written."""
    try:
        value = json.loads(text)
    except ValueError:
        raise Unsplittable("the result is a text that is not JSON") from None
    for write in _WRITERS:
        try:
            if write(value) == text:
                return value, write
        except TypeError:
            # orjson takes only numbers of 64 bits.
            continue
    raise Unsplittable("the result is JSON in a notation that cannot be written again")
