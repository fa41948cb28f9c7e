"""How the requests of a script are batched: chosen once at load, with the reason."""

from __future__ import annotations

import dataclasses
import json
import logging
import mimetypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.script_form import Batching, ScriptForm
from stoker.scripts.agreement import difference
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.gathered_calls import MAX_THREADS, GatheredCalls
from stoker.scripts.handles import HandleCall, like, together
from stoker.scripts.merge_check import check_mergeable, check_merging
from stoker.scripts.merging import MergedCalls
from stoker.scripts.self_check import (
    Disproved,
    Sample,
    answer_of,
    check_model,
    compare_answers,
    reason_of,
    steady_answer,
)
from stoker.scripts.variations import variations
from stoker.servable import SAMPLE_INPUT, Servable
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

__all__ = ["UNCHECKED", "BatchedCalls", "check_gathering", "choose_batching", "find_sample"]


# Proof that requests whose calls to a model are gathered get the answers that they get alone.


_ROWS: Final = 6
_PATIENCE_S: Final = 0.5
_LONGEST_PATIENCE_S: Final = 10.0


def check_gathering(calls: ScriptCalls, sample: Sample, gathered: GatheredCalls, max_rows: int) -> list[str]:
    """Prove that requests whose calls to a model are gathered get the answers that they get alone.

    Only calls of the kinds that were proved are gathered from then on.

    Returns:
        The methods whose calls are gathered.

    Raises:
        Disproved: They do not, or the script calls no model that is known.
    """
    begun_s = time.monotonic()
    alone = steady_answer(calls, sample)
    run_s = (time.monotonic() - begun_s) / 2
    on_thread, seen = gathered.watch(sample.request(with_head=calls.wants_head))
    compare_answers([alone], [on_thread], "a request on another thread")
    if not seen:
        raise Disproved(
            "run() calls no model that is known (ONNX Runtime, Keras, SavedModel, TensorFlow session) on its thread"
        )
    gathered.gather_only(_proved(seen, max_rows))
    requests = _like_sample(calls, sample)
    expected = [answer_of(calls, request) for request in requests]
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
            answer_of(calls, request)
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
    evidence = check_model(call, max_rows)
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
        call.on([like(array, [value]) for array, value in zip(call.arrays, row, strict=True)])
        for row in variations(own, _ROWS)
    ]


def _succeeds(call: HandleCall) -> bool:
    try:
        call.succeed(call.make())
    except Exception:  # noqa: BLE001  # a row that was made up may not make sense
        return False
    return True


logger = logging.getLogger(__name__)

_KEY: Final = "data"
UNCHECKED: Final = "asked for, unchecked"
"""What the reason begins with where the operator is believed."""
_NO_SAMPLE: Final = (
    "there is no sample input to check it with: "
    f"put {SAMPLE_INPUT} beside the script or into the model folder"
)


@dataclass(frozen=True, slots=True)
class BatchedCalls:
    """How requests are scored from now on.

    Attributes:
        answers: Scores requests, at most `form.max_requests` at once.
        form: What the server knows of the script, with the choice and its reason.
    """

    answers: Callable[[Sequence[ScriptRequest]], list[ScriptAnswer]]
    form: ScriptForm


def find_sample(servable: Servable, form: ScriptForm) -> Sample | None:
    """Find a request that the script is known to answer: the setting's, the model's, the one in its decorators.

    Raises:
        LoadFailed: The file that the setting names cannot be read.
    """
    if servable.sample_file is not None:
        return _read_sample(servable.sample_file)
    example = (form.input_schema or {}).get("example")
    if example:
        return Sample(json.dumps(example).encode(), "application/json", "the decorators' sample")
    return None


def _read_sample(path: Path) -> Sample:
    try:
        body = path.read_bytes()
    except OSError as error:
        raise LoadFailed.unreadable_sample(error) from error
    return Sample(body, mimetypes.guess_type(path.name)[0] or "application/octet-stream", path.name)


def choose_batching(calls: ScriptCalls, servable: Servable, sample: Sample | None) -> BatchedCalls:
    """Choose how requests to a script are batched, and say why in the log.

    Args:
        calls: The script.
        servable: Its settings: which way is wanted, how many rows at once.
        sample: What to prove it with.
    """
    chosen = _choose(calls, servable, sample)
    form = chosen.form
    logger.log(
        logging.INFO if servable.batching in ("auto", form.batching) else logging.WARNING,
        "batching of %s: %s, %s",
        servable.name,
        form.batching,
        form.batching_reason,
    )
    return chosen


def _choose(calls: ScriptCalls, servable: Servable, sample: Sample | None) -> BatchedCalls:
    wanted = servable.batching
    if servable.sequence is not None:
        return _one_by_one(calls, "run goes on from the state of a sequence")
    if calls.form.yields:
        return _one_by_one(calls, "run yields its answer piece by piece")
    if wanted == "none":
        return _one_by_one(calls, "asked for")
    if servable.max_batch_rows == 1:
        return _one_by_one(calls, "max_batch_rows is 1")
    if sample is None and wanted == "auto":
        return _one_by_one(calls, _NO_SAMPLE)
    failures = []
    for way in _WAYS if wanted == "auto" else (wanted,):
        try:
            return _WAYS[way](calls, servable.max_batch_rows, sample)
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
