"""Proof, on a sample input, that a script answers requests together as it answers each of them alone.

Whatever is compared has been run alone first. A script is steady if it gives equal answers to equal requests; rows
are made different from each other, so that a script which looks at other rows (a mean over the batch, a rank) gives
itself away; companies have several sizes and orders, so that a list that happens to be as long as the batch does too.

Alone and together are compared closely, not exactly: other shapes have other kernels. In companies of one shape the
answer to a row must be the same to the last character, whatever is beside it (`stoker.isolation.row_test` has the
reason), and the models that a script calls are read and tried in the same way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
import simdjson

from stoker.isolation.row_test import Evidence
from stoker.scripts.agreement import answer_difference, difference
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.gathering import GatheredCalls
from stoker.scripts.handle_check import dynamically_quantised, read_handle, try_handle
from stoker.scripts.handles import HandleCall, like, together
from stoker.scripts.merging import MergedCalls, Unsplittable
from stoker.scripts.request_log import SELF_CHECK, requests_in_log
from stoker.scripts.row_companions import TELLING, companions_of
from stoker.scripts.variations import variations
from stoker.wire.envelope import RequestHead, ScriptAnswer, ScriptRequest
from stoker.wire.merging import row_count, row_texture

__all__ = ["Disproved", "Sample", "check_gathering", "check_mergeable", "check_merging", "merge_key"]

_ROWS: Final = 6
_PATIENCE_S: Final = 0.5
_LONGEST_PATIENCE_S: Final = 10.0
_SHOWN: Final = 200
_SLOW_RUN_S: Final = 0.1


class Disproved(Exception):
    """Requests to this script cannot be run together; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that the script is known to answer.

    Attributes:
        body: What it holds.
        content_type: Of which type that is.
        source: Where it comes from, for the operator.
    """

    body: bytes
    content_type: str
    source: str

    def request(self, body: bytes | None = None, rows: int = 0, *, with_head: bool = False) -> ScriptRequest:
        """Return a request like the sample, with its body or another one."""
        content = self.body if body is None else body
        headers = [("content-type", self.content_type), ("content-length", str(len(content)))]
        head = RequestHead("POST", "/score", "", headers, "127.0.0.1") if with_head else None
        return ScriptRequest(SELF_CHECK, content, rows, head)


def merge_key(body: bytes) -> str | None:
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
    key = merge_key(sample.body)
    if key is None:
        raise Disproved(f"{sample.source} is not an object with one key that holds a list")
    _check_models(calls, sample, max_rows)
    check = _MergeCheck(calls, sample, key, max_rows)
    check.run()
    return check.merged, key


def _check_models(calls: ScriptCalls, sample: Sample, max_rows: int) -> None:
    """Look at what a script calls for a sample: no model of it may let rows see each other.

    Raises:
        Disproved: One does.
    """
    quantised = dynamically_quantised()
    if quantised is not None:
        raise Disproved(
            f"the script has loaded {quantised}, which takes the scale of its input from all rows"
        )
    gathered = GatheredCalls(calls, max_rows=max_rows, max_threads=1)
    try:
        _, seen = gathered.watch(sample.request(with_head=calls.wants_head))
    finally:
        gathered.close()
    for call in {call.kind: call for call in seen}.values():
        _check_model(call, max_rows)


def _check_model(call: HandleCall, max_rows: int) -> Evidence:
    """Raise Disproved if the rows of a call see each other, by its graph or beside companions."""
    reading = read_handle(call)
    if reading.finding == "mixed":
        raise Disproved(f"{call.name}: {reading.reason}")
    evidence = try_handle(call, max_rows, proven=reading.finding == "apart")
    if evidence.finding == "mixed":
        raise Disproved(f"{call.name}: {evidence.reason}")
    return evidence


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
        _steady_answer(self._calls, self._sample)
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
                f"run() fails for a row of {self._sample.source} alone: {_reason(error)}"
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
                raise Disproved(f"a call with {rows} rows failed: {_reason(error)}") from error
            _compare(alone, merged, "a merged request")

    def _answer(self, request: ScriptRequest) -> ScriptAnswer:
        if request.body not in self._alone:
            self._alone[request.body] = _answer(self._calls, request)
        return self._alone[request.body]

    def _request(self, rows: Sequence[Any]) -> ScriptRequest:
        body = json.dumps({self._key: rows}).encode()
        return self._sample.request(body, len(rows), with_head=self._calls.wants_head)


def check_gathering(calls: ScriptCalls, sample: Sample, gathered: GatheredCalls, max_rows: int) -> list[str]:
    """Prove that requests whose calls to a model are gathered get the answers that they get alone.

    Only calls of the kinds that were proved are gathered from then on.

    Returns:
        The methods whose calls are gathered.

    Raises:
        Disproved: They do not, or the script calls no model that is known.
    """
    begun_s = time.monotonic()
    alone = _steady_answer(calls, sample)
    run_s = (time.monotonic() - begun_s) / 2
    on_thread, seen = gathered.watch(sample.request(with_head=calls.wants_head))
    _compare([alone], [on_thread], "a request on another thread")
    if not seen:
        raise Disproved(
            "run() calls no model that is known (ONNX Runtime, Keras, SavedModel, TensorFlow session) on its thread"
        )
    gathered.gather_only(_proved(seen, max_rows))
    requests = _like_sample(calls, sample)
    expected = [_answer(calls, request) for request in requests]
    # Company is what is to be checked, so it is waited for.
    wait_s, gathered.wait_s = (
        gathered.wait_s,
        min(max(_PATIENCE_S, len(requests) * run_s), _LONGEST_PATIENCE_S),
    )
    try:
        for order in (1, -1):
            _compare(expected[::order], gathered.answers(requests[::order]), "a request among others")
    finally:
        gathered.wait_s = wait_s
    if gathered.largest_company < 2:
        raise Disproved("the calls to the model never come together; run() may lock it")
    return list(dict.fromkeys(call.name for call in gathered.gathered))


def _like_sample(calls: ScriptCalls, sample: Sample) -> list[ScriptRequest]:
    """Requests that the script answers, different ones where the sample is JSON."""
    try:
        bodies = [json.dumps(body).encode() for body in variations([json.loads(sample.body)], _ROWS)]
    except ValueError:
        bodies = [sample.body]
    usable = []
    for body in bodies:
        request = sample.request(body, with_head=calls.wants_head)
        try:
            _answer(calls, request)
        except Exception:  # noqa: BLE001, S112  # a body that was made up may not make sense
            continue
        usable.append(request)
    return list(islice(cycle(usable), _ROWS))


def _proved(calls: Sequence[HandleCall], max_rows: int) -> list[HandleCall]:
    """One call of each kind that may be gathered.

    Raises:
        Disproved: No kind may.
    """
    proved, reasons = [], []
    for call in {call.kind: call for call in calls}.values():
        try:
            _prove(call, max_rows)
        except Disproved as reason:
            reasons.append(str(reason))
        else:
            proved.append(call)
    if not proved:
        raise Disproved(reasons[0])
    return proved


def _prove(call: HandleCall, max_rows: int) -> None:
    """Read a model, try its rows beside companions, call it with rows alone and together, and compare."""
    evidence = _check_model(call, max_rows)
    if evidence.finding == "unknown":
        raise Disproved(f"{call.name}: {evidence.reason}")
    rows = [single for single in _single_rows(call) if _succeeds(single)]
    if len(rows) < 2:
        raise Disproved(f"{call.name}: no second row can be made from the sample's input")
    some = list(islice(cycle(rows), _ROWS))
    for company in ([some[0], *some[1:3]], some, some[::-1], list(islice(cycle(rows), max_rows))):
        try:
            found = together(company[:max_rows])
        except Exception as error:
            raise Disproved(f"{call.name} with {len(company)} rows: {_reason(error)}") from error
        for single, result in zip(company, found, strict=False):
            differs = difference(single.result(), result)
            if differs is not None:
                raise Disproved(f"{call.name} with {len(company)} rows: {differs}")


def _single_rows(call: HandleCall) -> list[HandleCall]:
    """Calls with one row each: those of `call`, and variations of them."""
    arrays = [np.asarray(array) for array in call.arrays]
    own = [[array[row].tolist() for array in arrays] for row in range(min(call.rows, _ROWS))]
    return [
        call.on([like(array, [value]) for array, value in zip(call.arrays, row, strict=True)])
        for row in variations(own, _ROWS)
    ]


def _succeeds(call: HandleCall) -> bool:
    try:
        call.succeed(call.make())
    except Exception:  # noqa: BLE001  # a row that was made up may not make sense
        return False
    return True


def _steady_answer(calls: ScriptCalls, sample: Sample) -> ScriptAnswer:
    request = sample.request(with_head=calls.wants_head)
    try:
        first, second = _answer(calls, request), _answer(calls, request)
    except Exception as error:
        raise Disproved(f"run() fails for {sample.source}: {_reason(error)}") from error
    if first.status != 200:
        raise Disproved(f"run() answers {sample.source} with status {first.status}")
    differs = answer_difference(first, second)
    if differs is not None:
        raise Disproved(f"two equal requests got different answers: {differs}")
    return first


def _answer(calls: ScriptCalls, request: ScriptRequest) -> ScriptAnswer:
    """Score one request, without a word in the log if it fails."""
    with requests_in_log(SELF_CHECK):
        return calls.encode(calls.invoke(calls.arguments(request)), 0)


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


def _compare(alone: Iterable[ScriptAnswer], batched: Iterable[ScriptAnswer], what: str) -> None:
    for mine, theirs in zip(alone, batched, strict=True):
        differs = answer_difference(mine, theirs)
        if differs is not None:
            raise Disproved(f"{what} gets another answer: {differs}")


def _reason(error: BaseException) -> str:
    text = str(error) if isinstance(error, Unsplittable) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
