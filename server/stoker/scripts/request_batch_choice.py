"""Chooses how many requests one call of `run` gets, once at load; examples prove that answers stay the same."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

import msgspec

from stoker.deployment import SAMPLE_INPUT, Deployment
from stoker.script_form import ScriptForm
from stoker.scripts.model_checks import check_quantisation
from stoker.scripts.request_batches import BatchRun, RequestBatches
from stoker.scripts.self_check import UNCHECKED, Disproved, compare_answers, reason_of
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker.system.wording import format_count
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

logger = logging.getLogger(__name__)


MAX_UNVOUCHED: Final = 32
"""The most requests of a call if the operator has not vouched for batches."""
_EXAMPLES: Final = 6
_NO_SAMPLE: Final = "there is no sample input to check it with"
_HOW_TO_CHECK: Final = f"put {SAMPLE_INPUT} into the model's folder, or vouch with batching: rows"


def choose_request_batches(run: BatchRun, deployment: Deployment, batches: RequestBatches) -> ScriptForm:
    """Choose how many requests a call gets, and log the reason.

    Examples of requests are answered alone and together. Without examples, the setting `batching: rows` is believed;
    it is not believed where examples prove it wrong.
    """
    form = ScriptForm(kind="raw", wants_head=True)
    most, reason = _choose(run, deployment, batches)
    wanted = deployment.batching
    logger.log(
        logging.WARNING if wanted == "rows" and most == 1 and deployment.max_batch_rows > 1 else logging.INFO,
        "batching of %s: at most %d requests a call, %s",
        deployment.name,
        most,
        reason,
    )
    return msgspec.structs.replace(
        form, batching="requests" if most > 1 else "none", batching_reason=reason, max_requests=most
    )


def _choose(run: BatchRun, deployment: Deployment, batches: RequestBatches) -> tuple[int, str]:
    """Return the most requests of a call, and the reason."""
    vouched = deployment.batching == "rows"
    most = deployment.max_batch_rows if vouched else min(deployment.max_batch_rows, MAX_UNVOUCHED)
    if deployment.batching == "none":
        return 1, "asked for"
    if most == 1:
        return 1, "max_batch_rows is 1"
    examples = run.examples(deployment, _EXAMPLES)
    if not examples:
        return (most, f"{UNCHECKED}: {_NO_SAMPLE}") if vouched else (1, f"{_NO_SAMPLE}: {_HOW_TO_CHECK}")
    try:
        check_together(batches, examples, most)
    except Disproved as failure:
        return 1, str(failure)
    return most, f"{format_count(len(examples), 'request')} got the same answers together as alone"


def check_together(batches: RequestBatches, examples: Sequence[ScriptRequest], most: int) -> None:
    """Prove that requests get the same answers together as alone, in companies of up to `most`.

    Raises:
        Disproved: They do not; the message is the reason.
    """
    check_quantisation()
    usable: list[tuple[ScriptRequest, ScriptAnswer]] = []
    for example in examples:
        try:
            answer = _quietly(batches, [example])[0]
        except Exception as error:
            if not usable:
                raise Disproved(f"run() fails for the first example: {reason_of(error)}") from error
            # A made-up request may make no sense.
            continue
        if answer.status < 400 or not usable:
            usable.append((example, answer))
    if usable and usable[0][1].status >= 400:
        raise Disproved(f"the first example is answered with status {usable[0][1].status}")
    if len(usable) < 2:
        raise Disproved("no second example is answered")
    compare_answers([usable[0][1]], _quietly(batches, [usable[0][0]]), "an equal request")
    companies = (usable[:2], usable[1::-1], usable, usable[::-1], list(islice(cycle(usable), most)))
    for company in (each[:most] for each in companies):
        try:
            found = _quietly(batches, [request for request, _ in company])
        except Exception as error:
            raise Disproved(f"a call with {len(company)} requests failed: {reason_of(error)}") from error
        compare_answers([alone for _, alone in company], found, "a request among others")


def _quietly(batches: RequestBatches, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
    """Score requests in one call; the log gets no failures."""
    with requests_in_log(SELF_CHECK):
        return batches.score_together(
            [msgspec.structs.replace(request, request_id=SELF_CHECK) for request in requests]
        )
