"""Proves at load that merged requests get the answers that they get alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any, Final

import simdjson

from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.json_companions import TELLING, companions_of
from stoker.scripts.merging import MergedCalls
from stoker.scripts.model_checks import check_models
from stoker.scripts.row_variations import variations
from stoker.scripts.script_sample import Sample
from stoker.scripts.self_check import Disproved, compare_answers, reason_of, score_once, steady_answer
from stoker.system.wording import format_count
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest, row_count, row_texture

_ROWS_MERGED: Final = 6
_SLOW_RUN_S: Final = 0.1


def _merge_key(body: bytes) -> str | None:
    """Return the only key of a body whose rows can be merged with other rows, or None."""
    try:
        content = json.loads(body)
    except ValueError:
        return None
    if not isinstance(content, dict) or len(content) != 1:
        return None
    (key,) = content
    # The rows of a body begin at its first bracket.
    return key if "[" not in key and row_count(simdjson.Parser(), body, key) else None


def check_mergeable(calls: ScriptCalls) -> None:
    """Raise Disproved if the script gets more of a request than its data."""
    if calls.form.kind == "raw":
        raise Disproved("a @rawhttp script gets each request as it came")
    if calls.with_headers:
        raise Disproved("run() gets request_headers, and each request has its own")


def check_merging(calls: ScriptCalls, sample: Sample, max_rows: int) -> tuple[MergedCalls, str]:
    """Prove that merged requests get the answers that they get alone.

    Returns:
        The merged calls, and the key of their bodies.
    """
    check_mergeable(calls)
    key = _merge_key(sample.body)
    if key is None:
        raise Disproved(f"{sample.source} is not an object with one key that holds a list")
    check_models(calls, sample, max_rows)
    check = _MergeCheck(calls, sample, key, max_rows)
    check.run()
    return check.merged, key


class _MergeCheck:
    def __init__(self, calls: ScriptCalls, sample: Sample, key: str, max_rows: int) -> None:
        self.merged = MergedCalls(calls, key=key, max_rows=max_rows)
        self._calls = calls
        self._sample = sample
        self._key = key
        self._max_rows = max_rows
        self._alone: dict[bytes, ScriptAnswer] = {}
        self._beside_rows: list[tuple[str, ScriptRequest]] | None = None
        self._run_s = 0.0

    def run(self) -> None:
        begun_s = time.monotonic()
        steady_answer(self._calls, self._sample)
        self._run_s = (time.monotonic() - begun_s) / 2
        rows = self._usable_rows(json.loads(self._sample.body)[self._key])
        if len(rows) < 2:
            raise Disproved(
                f"{self._sample.source} has no two different rows that are answered alike; put two into it"
            )
        singles = [self._request([row]) for row in rows]
        shared = list(islice(cycle(rows), _ROWS_MERGED))
        one, two, three = self._request(shared[:1]), self._request(shared[1:3]), self._request(shared[3:])
        for company in ([one, two], [one, two, three], [three, one, two], singles, singles[::-1]):
            self._compare(company)
        self._compare_beside(singles)
        # Try the largest company too: a server that starts can run it.
        many = list(islice(cycle(singles), self._max_rows))
        self._compare(many[: len(next(self.merged.batches(many)))])

    def _compare_beside(self, singles: Sequence[ScriptRequest]) -> None:
        """Put companions beside a row: in companies of one shape its answer stays the same, to the last character."""
        one, other, third = islice(cycle(singles), 3)
        for before, after in ((0, 1), (1, 0), (1, 1)):
            if before + after >= self._max_rows:
                continue
            expected, again = (self._beside(one, [other] * before, [third] * after) for _ in range(2))
            if expected != again:
                raise Disproved("equal merged requests got different answers")
            for kind, request in self._companions(other):
                found = self._beside(one, [request] * before, [request] * after)
                if found is not None and found != expected:
                    raise Disproved(f"beside a row of the kind {kind!r} a merged request gets another answer")

    def _beside(
        self, one: ScriptRequest, before: list[ScriptRequest], after: list[ScriptRequest]
    ) -> tuple[int, bytes] | None:
        """Return a request's answer among others; None if the script does not answer them together."""
        try:
            answer = self.merged.score_together([*before, one, *after])[len(before)]
        except Exception:  # noqa: BLE001  # when it comes, `MergedCalls` takes such a company apart
            return None
        return answer.status, answer.body

    def _companions(self, model: ScriptRequest) -> list[tuple[str, ScriptRequest]]:
        """Return requests that could be merged with this one, with their kinds; for a slow script fewer kinds."""
        if self._beside_rows is None:
            (row,) = json.loads(model.body)[self._key]
            requests = ((kind, self._request([made])) for kind, made in companions_of(row))
            texture = row_texture(model.body)
            self._beside_rows = [
                (kind, request)
                for kind, request in requests
                if row_texture(request.body) == texture and (kind in TELLING or self._run_s < _SLOW_RUN_S)
            ]
        return self._beside_rows

    def _usable_rows(self, own: Sequence[Any]) -> list[Any]:
        """Return different rows that the script answers alone, with results like that for the first row."""
        model = self._request(own[:1])
        try:
            first = self._answer(model)
        except Exception as error:
            raise Disproved(
                f"run() fails for a row of {self._sample.source} alone: {reason_of(error)}"
            ) from error
        rows = []
        for row in variations(own, _ROWS_MERGED):
            request = self._request([row])
            if row_texture(request.body) != row_texture(model.body):
                continue
            try:
                answer = self._answer(request)
            except Exception:  # noqa: BLE001, S112  # a made-up row may make no sense
                continue
            if _looks_like(answer, first):
                rows.append(row)
        return rows

    def _compare(self, requests: Sequence[ScriptRequest]) -> None:
        for places in self.merged.batches(requests):
            company = [requests[place] for place in places]
            try:
                alone = [self._answer(request) for request in company]
                merged = self.merged.score_together(company)
            except Exception as error:
                rows = sum(request.rows for request in company)
                raise Disproved(
                    f"a call with {format_count(rows, 'row')} failed: {reason_of(error)}"
                ) from error
            compare_answers(alone, merged, "a merged request")

    def _answer(self, request: ScriptRequest) -> ScriptAnswer:
        if request.body not in self._alone:
            self._alone[request.body] = score_once(self._calls, request)
        return self._alone[request.body]

    def _request(self, rows: Sequence[Any]) -> ScriptRequest:
        body = json.dumps({self._key: rows}).encode()
        return self._sample.request(body, len(rows), with_head=self._calls.wants_head)


def _looks_like(answer: ScriptAnswer, first: ScriptAnswer) -> bool:
    """Whether both answers are results: some scripts answer rows that they cannot score with an error text."""
    if answer.status != first.status:
        return False
    try:
        return bool(_outline(json.loads(answer.body)) == _outline(json.loads(first.body)))
    except ValueError:
        return False


def _outline(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return ["text", _outline(json.loads(value))]
    return type(value)
