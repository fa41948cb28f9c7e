"""Chooses how the requests of a script are batched, once at load: it proves each way with the sample input.

See decision 13.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from stoker.deployment import SAMPLE_INPUT, Deployment
from stoker.script_form import Batching, ScriptForm
from stoker.scripts.gathered_calls import MAX_THREADS, GatheredCalls
from stoker.scripts.gathering_check import check_gathering
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import MergedCalls
from stoker.scripts.merging_check import check_mergeable, check_merging
from stoker.scripts.script_sample import Sample
from stoker.scripts.self_check import UNCHECKED, Disproved
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

logger = logging.getLogger(__name__)


_KEY: Final = "data"
_NO_SAMPLE: Final = (
    "there is no sample input to check it with: "
    f"put {SAMPLE_INPUT} beside the script or into the model folder"
)


class BatchedCalls(Struct, frozen=True):
    """The chosen way of scoring requests."""

    answers: Callable[[Sequence[ScriptRequest]], list[ScriptAnswer]]
    form: ScriptForm


def choose_batching(calls: ScriptCalls, deployment: Deployment, sample: Sample | None) -> BatchedCalls:
    """Choose how requests to a script are batched, and log the reason."""
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
    form = msgspec.structs.replace(
        calls.form, batching=batching, batching_reason=reason, max_requests=max_requests, merge_key=key
    )
    return BatchedCalls(answers, form)
