"""Proves at load that requests whose calls to a model are gathered get the answers that they get alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

import numpy as np

from stoker.scripts.answer_differences import difference
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.handle_calls import HandleCall, call_together, convert_like
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.model_checks import check_model
from stoker.scripts.row_variations import variations
from stoker.scripts.script_sample import Sample
from stoker.scripts.self_check import Disproved, compare_answers, reason_of, score_once, steady_answer
from stoker.wire.script_requests import ScriptRequest

_ROWS: Final = 6
_PATIENCE_S: Final = 0.5
_LONGEST_PATIENCE_S: Final = 10.0


def check_gathering(calls: ScriptCalls, sample: Sample, gathered: GatheredCalls, max_rows: int) -> list[str]:
    """Prove that requests whose calls to a model are gathered get the answers that they get alone.

    Afterwards only calls of the proved kinds are gathered.

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
    # Wait long enough that the calls come together.
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
    """Return requests that the script answers; they differ if the sample is JSON."""
    try:
        bodies = [json.dumps(body).encode() for body in variations([json.loads(sample.body)], _ROWS)]
    except ValueError:
        bodies = [sample.body]
    usable = []
    for body in bodies:
        request = sample.request(body, with_head=calls.wants_head)
        try:
            score_once(calls, request)
        except Exception:  # noqa: BLE001, S112  # a made-up body may make no sense
            continue
        usable.append(request)
    return list(islice(cycle(usable), _ROWS))


def _proved(calls: Sequence[HandleCall], max_rows: int) -> list[HandleCall]:
    """Return a call of each kind that may be gathered."""
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
    """Check the model of a call, then compare its results for rows alone and together."""
    evidence = check_model(call, max_rows)
    if evidence.finding == "unknown":
        raise Disproved(f"{call.name}: {evidence.reason}")
    rows = [single for single in _single_rows(call) if _succeeds(single)]
    if len(rows) < 2:
        raise Disproved(f"{call.name}: no second row can be made from the sample's input")
    mixed = list(islice(cycle(rows), _ROWS))
    for company in (mixed[:3], mixed, mixed[::-1], list(islice(cycle(rows), max_rows))):
        try:
            found = call_together(company[:max_rows])
        except Exception as error:
            raise Disproved(f"{call.name} with {len(company)} rows: {reason_of(error)}") from error
        for single, result in zip(company, found, strict=False):
            differs = difference(single.result(), result)
            if differs is not None:
                raise Disproved(f"{call.name} with {len(company)} rows: {differs}")


def _single_rows(call: HandleCall) -> list[HandleCall]:
    """Return calls with one row each: the rows of `call`, and variations of them."""
    arrays = [np.asarray(array) for array in call.arrays]
    own = [[array[row].tolist() for array in arrays] for row in range(min(call.rows, _ROWS))]
    return [
        call.on([convert_like(array, [value]) for array, value in zip(call.arrays, row, strict=True)])
        for row in variations(own, _ROWS)
    ]


def _succeeds(call: HandleCall) -> bool:
    try:
        call.succeed(call.make())
    except Exception:  # noqa: BLE001  # a made-up row may make no sense
        return False
    return True
