"""Merges requests into one: their rows become one body, `run` is called once, its result is split by row counts.

Contract of `MergedCalls.answers`:

- Each request gets the answer that it would get alone, up to rounding: a merged call that raises, or whose result
  does not show which part belongs to which request, is made again in halves, at last for each request alone. So only
  a request that fails alone fails.
- `run` may therefore see the same rows several times.
- Requests are merged only with requests of the same kind: with the same content type, and the same types of values in
  their rows.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext

from stoker.scripts.halved_calls import score_in_halves
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.quick_json import known_json
from stoker.scripts.result_parts import divide_result
from stoker.system.logs import requests_in_log
from stoker.wire.script_requests import MERGED_BYTES, ScriptAnswer, ScriptRequest, merge, row_texture


class MergedCalls:
    """Calls a script once for the rows of several requests."""

    def __init__(self, calls: ScriptCalls, *, key: str, max_rows: int) -> None:
        """Merge requests whose bodies have the same key.

        Args:
            max_rows: Most rows in one call; a request with more rows is run alone.
        """
        self._calls = calls
        self._key = key
        self._max_rows = max_rows

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests; each request with `rows` = 0 alone. Never raises exceptions of the script."""
        answers: dict[int, ScriptAnswer] = {}
        for places in self.batches(requests):
            found = self._score([requests[place] for place in places])
            answers.update(zip(places, found, strict=True))
        return [answers[place] for place in range(len(requests))]

    def score_together(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests in one call.

        Raises:
            Unsplittable: The result cannot be split.
            Exception: The call raised it.
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
            parts = divide_result(result, [request.rows for request in requests])
            return [self._calls.encode(part, exec_ns) for part in parts]

    def batches(self, requests: Sequence[ScriptRequest]) -> Iterator[list[int]]:
        """Yield groups: the places of requests that are called together."""
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
                self._score_alone(request) if answer.failed else answer
                for request, answer in zip(company, self.score_together(company), strict=True)
            ]

        return score_in_halves(requests, together, self._score_alone, self._calls.refusal)

    def _score_alone(self, request: ScriptRequest) -> ScriptAnswer:
        with known_json(request.body) if request.rows else nullcontext():
            return self._calls.answer(request)


def _kind(request: ScriptRequest) -> Hashable:
    head = request.head
    if head is None:
        return row_texture(request.body)
    types = tuple(value for name, value in head.headers if name.lower() == "content-type")
    return (head.method, types, *row_texture(request.body))
