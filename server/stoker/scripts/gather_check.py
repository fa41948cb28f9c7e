"""Proof that requests whose calls to a model are gathered get the answers that they get alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

import numpy as np

from stoker.scripts.agreement import difference
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.handles import HandleCall, like, together
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
from stoker.wire.envelope import ScriptRequest

__all__ = ["check_gathering"]

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
