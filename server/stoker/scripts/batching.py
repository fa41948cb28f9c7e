"""Chooses how the requests of a script are batched, once at load, by proving each way with the sample input.

See decision 13.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import mimetypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import simdjson

from stoker.deployment import SAMPLE_INPUT, Deployment
from stoker.errors import LoadFailed
from stoker.script_form import Batching, ScriptForm
from stoker.scripts.handles import MAX_THREADS, GatheredCalls, HandleCall, call_together, convert_like
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import MergedCalls
from stoker.scripts.self_check import (
    Disproved,
    Sample,
    check_model,
    check_models,
    compare_answers,
    difference,
    reason_of,
    score_once,
    steady_answer,
    variations,
)
from stoker.settings.files import read_sample_file
from stoker.system.wording import format_count
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest, row_count, row_texture

logger = logging.getLogger(__name__)


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


_ROWS_MERGED: Final = 6
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
        some = list(islice(cycle(rows), _ROWS_MERGED))
        one, two, three = self._request(some[:1]), self._request(some[1:3]), self._request(some[3:])
        for company in ([one, two], [one, two, three], [three, one, two], singles, singles[::-1]):
            self._compare(company)
        self._compare_beside(singles)
        # The largest company comes once at start-up, so a server that starts has been there.
        many = list(islice(cycle(singles), self._max_rows))
        self._compare(many[: len(next(self.merged.batches(many)))])

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
        """Return a request's answer among others; None if the script does not answer them together."""
        try:
            answer = self.merged.together([*before, one, *after])[len(before)]
        except Exception:  # noqa: BLE001  # such a company is taken apart again when it comes
            return None
        return answer.status, answer.body

    def _companions(self, convert_like: ScriptRequest) -> list[tuple[str, ScriptRequest]]:
        """Requests that could be merged with this one, by their kinds; of a slow script the most telling ones."""
        if self._beside_rows is None:
            (row,) = json.loads(convert_like.body)[self._key]
            requests = ((kind, self._request([made])) for kind, made in companions_of(row))
            texture = row_texture(convert_like.body)
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
        for row in variations(own, _ROWS_MERGED):
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
        for places in self.merged.batches(requests):
            company = [requests[place] for place in places]
            try:
                alone = [self._answer(request) for request in company]
                merged = self.merged.together(company)
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


# Proof that requests whose calls to a model are gathered get the answers that they get alone.


_ROWS: Final = 6
_PATIENCE_S: Final = 0.5
_LONGEST_PATIENCE_S: Final = 10.0


def check_gathering(calls: ScriptCalls, sample: Sample, gathered: GatheredCalls, max_rows: int) -> list[str]:
    """Prove that requests whose calls to a model are gathered get the answers that they get alone.

    Only calls of the kinds that were proved are gathered from then on.

    Returns:
        The methods whose calls are gathered.
    """
    begun_s = time.monotonic()
    alone = steady_answer(calls, sample)
    run_s = (time.monotonic() - begun_s) / 2
    on_thread, seen = gathered.record_calls(sample.request(with_head=calls.wants_head))
    compare_answers([alone], [on_thread], "a request on another thread")
    if not seen:
        raise Disproved(
            "run() calls no model that is known (ONNX Runtime, Keras, SavedModel, TensorFlow session) on its thread"
        )
    gathered.gather_only(_proved(seen, max_rows))
    requests = _like_sample(calls, sample)
    expected = [score_once(calls, request) for request in requests]
    # Company is what is to be checked, so it is waited for.
    wait_s, gathered.wait_s = (
        gathered.wait_s,
        min(max(_PATIENCE_S, len(requests) * run_s), _LONGEST_PATIENCE_S),
    )
    try:
        for order in (1, -1):
            compare_answers(expected[::order], gathered.answers(requests[::order]), "a request among others")
    finally:
        gathered.wait_s = wait_s
    if gathered.largest_batch < 2:
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
            score_once(calls, request)
        except Exception:  # noqa: BLE001, S112  # a body that was made up may not make sense
            continue
        usable.append(request)
    return list(islice(cycle(usable), _ROWS))


def _proved(calls: Sequence[HandleCall], max_rows: int) -> list[HandleCall]:
    """One call of each kind that may be gathered."""
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
    evidence = check_model(call, max_rows)
    if evidence.finding == "unknown":
        raise Disproved(f"{call.name}: {evidence.reason}")
    rows = [single for single in _single_rows(call) if _succeeds(single)]
    if len(rows) < 2:
        raise Disproved(f"{call.name}: no second row can be made from the sample's input")
    some = list(islice(cycle(rows), _ROWS))
    for company in ([some[0], *some[1:3]], some, some[::-1], list(islice(cycle(rows), max_rows))):
        try:
            found = call_together(company[:max_rows])
        except Exception as error:
            raise Disproved(f"{call.name} with {len(company)} rows: {reason_of(error)}") from error
        for single, result in zip(company, found, strict=False):
            differs = difference(single.result(), result)
            if differs is not None:
                raise Disproved(f"{call.name} with {len(company)} rows: {differs}")


def _single_rows(call: HandleCall) -> list[HandleCall]:
    """Calls with one row each: those of `call`, and variations of them."""
    arrays = [np.asarray(array) for array in call.arrays]
    own = [[array[row].tolist() for array in arrays] for row in range(min(call.rows, _ROWS))]
    return [
        call.on([convert_like(array, [value]) for array, value in zip(call.arrays, row, strict=True)])
        for row in variations(own, _ROWS)
    ]


def _succeeds(call: HandleCall) -> bool:
    try:
        call.succeed(call.make())
    except Exception:  # noqa: BLE001  # a row that was made up may not make sense
        return False
    return True


_KEY: Final = "data"
UNCHECKED: Final = "asked for, unchecked"
"""The first words of the reason where the operator vouches for it."""
_NO_SAMPLE: Final = (
    "there is no sample input to check it with: "
    f"put {SAMPLE_INPUT} beside the script or into the model folder"
)


@dataclass(frozen=True, slots=True)
class BatchedCalls:
    """How requests are scored from now on."""

    answers: Callable[[Sequence[ScriptRequest]], list[ScriptAnswer]]
    form: ScriptForm


def find_sample(deployment: Deployment, form: ScriptForm) -> Sample | None:
    """Find a request that the script is known to answer: the setting's, the model's, the one in its decorators."""
    if deployment.sample_file is not None:
        return _read_sample(deployment.sample_file)
    example = (form.input_schema or {}).get("example")
    if example:
        return Sample(json.dumps(example).encode(), "application/json", "the decorators' sample")
    return None


def _read_sample(path: Path) -> Sample:
    try:
        body = read_sample_file(path)
    except OSError as error:
        raise LoadFailed.unreadable_sample(error) from error
    return Sample(body, mimetypes.guess_type(path.name)[0] or "application/octet-stream", path.name)


def choose_batching(calls: ScriptCalls, deployment: Deployment, sample: Sample | None) -> BatchedCalls:
    """Choose how requests to a script are batched, and say why in the log."""
    chosen = _choose(calls, deployment, sample)
    form = chosen.form
    logger.log(
        logging.INFO if deployment.batching in ("auto", form.batching) else logging.WARNING,
        "batching of %s: %s, %s",
        deployment.name,
        form.batching,
        form.batching_reason,
    )
    return chosen


def _choose(calls: ScriptCalls, deployment: Deployment, sample: Sample | None) -> BatchedCalls:
    wanted = deployment.batching
    if deployment.sequence is not None:
        return _one_by_one(calls, "run goes on from the state of a sequence")
    if calls.form.yields:
        return _one_by_one(calls, "run yields its answer piece by piece")
    if wanted == "none":
        return _one_by_one(calls, "asked for")
    if deployment.max_batch_rows == 1:
        return _one_by_one(calls, "max_batch_rows is 1")
    if sample is None and wanted == "auto":
        return _one_by_one(calls, _NO_SAMPLE)
    failures = []
    for way in _WAYS if wanted == "auto" else (wanted,):
        try:
            return _WAYS[way](calls, deployment.max_batch_rows, sample)
        except Disproved as failure:
            failures.append(f"not by {way}: {failure}")
    return _one_by_one(calls, "; ".join(failures))


def _merge(calls: ScriptCalls, max_rows: int, sample: Sample | None) -> BatchedCalls:
    if sample is None:
        merged = MergedCalls(calls, key=_KEY, max_rows=max_rows)
        check_mergeable(calls)
        return _batched(calls, "merge", f"{UNCHECKED}: {_NO_SAMPLE}", merged.answers, max_rows, _KEY)
    merged, key = check_merging(calls, sample, max_rows)
    reason = f"bodies made from {sample.source} got the same answers merged as alone"
    return _batched(calls, "merge", reason, merged.answers, max_rows, key)


def _gather(calls: ScriptCalls, max_rows: int, sample: Sample | None) -> BatchedCalls:
    threads = min(max_rows, MAX_THREADS)
    gathered = GatheredCalls(calls, max_rows=max_rows, max_threads=threads)
    if sample is None:
        reason = f"{UNCHECKED}: {_NO_SAMPLE}"
    else:
        try:
            methods = check_gathering(calls, sample, gathered, max_rows)
        except BaseException:
            gathered.close()
            raise
        reason = f"calls of {', '.join(methods)} for {sample.source} gave the same results gathered as alone"
    return _batched(calls, "handle", reason, gathered.answers, threads, _KEY)


_WAYS: Final = {"merge": _merge, "handle": _gather}


def _one_by_one(calls: ScriptCalls, reason: str) -> BatchedCalls:
    def answers(requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        return [calls.answer(request) for request in requests]

    return _batched(calls, "none", reason, answers, 1, _KEY)


def _batched(
    calls: ScriptCalls,
    batching: Batching,
    reason: str,
    answers: Callable[[Sequence[ScriptRequest]], list[ScriptAnswer]],
    max_requests: int,
    key: str,
) -> BatchedCalls:
    form = dataclasses.replace(
        calls.form, batching=batching, batching_reason=reason, max_requests=max_requests, merge_key=key
    )
    return BatchedCalls(answers, form)
