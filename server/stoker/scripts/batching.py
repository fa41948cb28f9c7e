"""How the requests of a script are batched: chosen once at load, with the reason."""

from __future__ import annotations

import dataclasses
import json
import logging
import mimetypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.errors import LoadFailed
from stoker.script_form import Batching, ScriptForm
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.gather_check import check_gathering
from stoker.scripts.gathered_calls import MAX_THREADS, GatheredCalls
from stoker.scripts.merge_check import check_mergeable, check_merging
from stoker.scripts.merging import MergedCalls
from stoker.scripts.self_check import Disproved, Sample
from stoker.servable import SAMPLE_INPUT, Servable
from stoker.wire.envelope import ScriptAnswer, ScriptRequest

__all__ = ["UNCHECKED", "BatchedCalls", "choose_batching", "find_sample"]

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
