"""Proof that merged requests get the answers that they get alone, and that no row sees another."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Final

import simdjson

from stoker.scripts.calls import ScriptCalls
from stoker.scripts.merging import MergedCalls
from stoker.scripts.self_check import (
    Disproved,
    Sample,
    answer_of,
    check_models,
    compare_answers,
    reason_of,
    steady_answer,
)
from stoker.scripts.variations import variations
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest, row_count, row_texture

__all__ = ["TELLING", "check_mergeable", "check_merging", "companions_of"]


# What is put beside a row of JSON to see whether a script lets rows see each other.
#
# The same kinds as `stoker.isolation.companions` has for tensors, as far as JSON can say them: NaN and infinities
# cannot be sent, but a number that is too large for a float32 becomes one.


_LONG: Final = "stoker " * 143
_FOREIGN: Final = "Ωмега 漢字 \U0001f525"
_INTEGERS: Final[dict[str, Callable[[int], int]]] = {
    "zero": lambda _: 0,
    "large": lambda number: 1000 * number,
    "huge": lambda _: 2**31 - 1,
    "negative": lambda _: -1_000_000,
}
_FRACTIONS: Final[dict[str, Callable[[float], float]]] = {
    "zero": lambda _: 0.0,
    "large": lambda number: 1000.0 * number,
    "huge": lambda _: 1e300,
    "negative": lambda _: -1e6,
    "denormal": lambda _: 1e-300,
}
_TEXTS: Final[dict[str, Callable[[str], str]]] = {
    "empty": lambda _: "",
    "long": lambda text: f"{text} {_LONG}",
    "foreign": lambda _: _FOREIGN,
}
TELLING: Final = ("large", "huge", "long")
"""Kinds that are enough where each call takes long."""


def companions_of(row: Any) -> Iterator[tuple[str, Any]]:
    """Yield rows like a row of JSON values, each with all of its numbers or texts replaced, by what they are called.

    Types stay, for only rows of the same types are merged. Kinds that would change nothing are left out.
    """
    for kind in dict.fromkeys((*TELLING, *_FRACTIONS, *_TEXTS)):
        made = _replaced(kind, row)
        if made != row:
            yield kind, made


def _replaced(kind: str, value: Any) -> Any:
    match value:
        case dict():
            return {key: _replaced(kind, item) for key, item in value.items()}
        case list():
            return [_replaced(kind, item) for item in value]
        case bool() | None:
            return value
        case int() if kind in _INTEGERS:
            return _INTEGERS[kind](value)
        case float() if kind in _FRACTIONS:
            return _FRACTIONS[kind](value)
        case str() if kind in _TEXTS:
            return _TEXTS[kind](value)
        case _:
            return value


_ROWS: Final = 6
_SLOW_RUN_S: Final = 0.1


def _merge_key(body: bytes) -> str | None:
    """Return the only key of a body whose rows can be merged with those of others, or None."""
    try:
        content = json.loads(body)
    except ValueError:
        return None
    if not isinstance(content, dict) or len(content) != 1:
        return None
    (key,) = content
    # The text of the rows is found by the first bracket.
    return key if "[" not in key and row_count(simdjson.Parser(), body, key) else None


def check_mergeable(calls: ScriptCalls) -> None:
    """Raise Disproved if what the script gets besides the data belongs to one request."""
    if calls.form.kind == "raw":
        raise Disproved("a @rawhttp script gets each request as it came")
    if calls.with_headers:
        raise Disproved("run() gets request_headers, and each request has its own")


def check_merging(calls: ScriptCalls, sample: Sample, max_rows: int) -> tuple[MergedCalls, str]:
    """Prove that merged requests get the answers that they get alone.

    Returns:
        The merged calls, and the key of their bodies.

    Raises:
        Disproved: They do not.
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
        some = list(islice(cycle(rows), _ROWS))
        one, two, three = self._request(some[:1]), self._request(some[1:3]), self._request(some[3:])
        for company in ([one, two], [one, two, three], [three, one, two], singles, singles[::-1]):
            self._compare(company)
        self._compare_beside(singles)
        # The largest company comes once at start-up, so a server that starts has been there.
        many = list(islice(cycle(singles), self._max_rows))
        self._compare(many[: len(next(self.merged.companies(many)))])

    def _compare_beside(self, singles: Sequence[ScriptRequest]) -> None:
        """Put companions beside a row: in companies of one shape its answer is the same, to the last character."""
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
        """What a request is answered among others; None if the script does not answer them together."""
        try:
            answer = self.merged.together([*before, one, *after])[len(before)]
        except Exception:  # noqa: BLE001  # such a company is taken apart again when it comes
            return None
        return answer.status, answer.body

    def _companions(self, like: ScriptRequest) -> list[tuple[str, ScriptRequest]]:
        """Requests that could be merged with this one, by their kinds; of a slow script the most telling ones."""
        if self._beside_rows is None:
            (row,) = json.loads(like.body)[self._key]
            requests = ((kind, self._request([made])) for kind, made in companions_of(row))
            texture = row_texture(like.body)
            self._beside_rows = [
                (kind, request)
                for kind, request in requests
                if row_texture(request.body) == texture and (kind in TELLING or self._run_s < _SLOW_RUN_S)
            ]
        return self._beside_rows

    def _usable_rows(self, own: Sequence[Any]) -> list[Any]:
        """Different rows that the script answers alone, in the way in which it answers the first one."""
        model = self._request(own[:1])
        try:
            first = self._answer(model)
        except Exception as error:
            raise Disproved(
                f"run() fails for a row of {self._sample.source} alone: {reason_of(error)}"
            ) from error
        rows = []
        for row in variations(own, _ROWS):
            request = self._request([row])
            if row_texture(request.body) != row_texture(model.body):
                continue
            try:
                answer = self._answer(request)
            except Exception:  # noqa: BLE001, S112  # a row that was made up may not make sense
                continue
            if _looks_like(answer, first):
                rows.append(row)
        return rows

    def _compare(self, requests: Sequence[ScriptRequest]) -> None:
        for places in self.merged.companies(requests):
            company = [requests[place] for place in places]
            try:
                alone = [self._answer(request) for request in company]
                merged = self.merged.together(company)
            except Exception as error:
                rows = sum(request.rows for request in company)
                raise Disproved(f"a call with {rows} rows failed: {reason_of(error)}") from error
            compare_answers(alone, merged, "a merged request")

    def _answer(self, request: ScriptRequest) -> ScriptAnswer:
        if request.body not in self._alone:
            self._alone[request.body] = answer_of(self._calls, request)
        return self._alone[request.body]

    def _request(self, rows: Sequence[Any]) -> ScriptRequest:
        body = json.dumps({self._key: rows}).encode()
        return self._sample.request(body, len(rows), with_head=self._calls.wants_head)


def _looks_like(answer: ScriptAnswer, first: ScriptAnswer) -> bool:
    """Whether both are results: some scripts answer what they cannot score with a text instead."""
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
