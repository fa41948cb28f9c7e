"""Scripts whose `run` answers several whole requests in one call: how such calls are made, and proved at load.

Contract of `RequestBatches.answers`:

- Each request gets the answer that it would get alone: a call that raises is made again in halves, at last for each
  request alone, so only what fails alone fails.
- `run` may therefore see the same request several times.
"""

from __future__ import annotations

import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from stoker.deployment import SAMPLE_INPUT
from stoker.errors import RequestError
from stoker.script_form import ScriptForm
from stoker.scripts.call_watchdog import Watchdog, call_contained
from stoker.scripts.invocation import refusal_of
from stoker.scripts.merging import score_in_halves
from stoker.scripts.self_check import Disproved, compare_answers, dynamically_quantised, reason_of
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

if TYPE_CHECKING:
    from stoker.deployment import Deployment

logger = logging.getLogger(__name__)

MAX_UNASKED: Final = 32
"""The most requests of a call where the operator has not vouched for batches."""
UNCHECKED: Final = "asked for, unchecked"
"""The first words of the reason where the operator vouches for it."""
_EXAMPLES: Final = 6
_NO_SAMPLE: Final = "there is no sample input to check it with"
_HOW_TO_CHECK: Final = f"put {SAMPLE_INPUT} into the model's folder, or vouch with batching: rows"


class BatchRun(ABC):
    """The `run` of a script that answers several requests in one call."""

    @abstractmethod
    def __call__(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Answer requests, each with its head, in one call of the model.

        Raises:
            Exception: The call failed. Requests that are malformed do not make it fail: they are told so.
        """

    @abstractmethod
    def examples(self, deployment: Deployment, count: int) -> list[ScriptRequest]:
        """Return up to `count` different requests that the script is likely to answer; none if it knows of none."""

    def refusal(self, error: Exception) -> ScriptAnswer | None:
        """Return the answer for a request that failed alone; None leaves that to the server."""
        del error
        return None


class RequestBatches:
    """Calls a script once for several requests."""

    def __init__(self, run: BatchRun, watchdog: Watchdog | None = None) -> None:
        """Wrap a `run`, whose calls a watchdog ends if they take too long."""
        self._run = run
        self._watchdog = watchdog

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests together. Never raises what the script raises."""
        return score_in_halves(requests, self.together, self.alone, self._refusal)

    def together(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests in one call.

        Raises:
            Exception: What the call raised.
        """

        def call() -> list[ScriptAnswer]:
            answers = self._run(requests)
            if len(answers) != len(requests):
                raise ValueError(f"run() returned {len(answers)} answers for {len(requests)} requests")
            return answers

        with requests_in_log(*(request.request_id for request in requests)):
            return call_contained(call, self._watchdog)

    def alone(self, request: ScriptRequest) -> ScriptAnswer:
        """Score one request; never raises."""
        try:
            (answer,) = self.together([request])
        except Exception as error:  # noqa: BLE001  # told to the caller
            with requests_in_log(request.request_id):
                return self._refusal(error, request)
        return answer

    def _refusal(self, error: Exception, request: ScriptRequest) -> ScriptAnswer:
        del request
        own = None if isinstance(error, RequestError) else self._run.refusal(error)
        return refusal_of(error) if own is None else own


def choose_request_batches(run: BatchRun, deployment: Deployment, batches: RequestBatches) -> ScriptForm:
    """Choose how many requests a call gets, and say why in the log.

    Examples of requests are answered alone and together. Without examples the operator is believed who asks for
    `batching: rows`; nobody is who was proved wrong.
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
    return dataclasses.replace(
        form, batching="requests" if most > 1 else "none", batching_reason=reason, max_requests=most
    )


def _choose(run: BatchRun, deployment: Deployment, batches: RequestBatches) -> tuple[int, str]:
    """The most requests of a call, and why."""
    vouched = deployment.batching == "rows"
    most = deployment.max_batch_rows if vouched else min(deployment.max_batch_rows, MAX_UNASKED)
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
    return most, f"{len(examples)} requests got the same answers together as alone"


def check_together(batches: RequestBatches, examples: Sequence[ScriptRequest], most: int) -> None:
    """Prove that requests are answered together as they are alone, in companies of up to `most`.

    Raises:
        Disproved: They are not; the message says why.
    """
    quantised = dynamically_quantised()
    if quantised is not None:
        raise Disproved(
            f"the script has loaded {quantised}, which takes the scale of its input from all rows"
        )
    usable: list[tuple[ScriptRequest, ScriptAnswer]] = []
    for example in examples:
        try:
            answer = _quietly(batches, [example])[0]
        except Exception as error:
            if not usable:
                raise Disproved(f"run() fails for the first example: {reason_of(error)}") from error
            # What was made up may not make sense.
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
    """Score requests in one call; what fails is no fault that the log should have."""
    with requests_in_log(SELF_CHECK):
        return batches.together([dataclasses.replace(request, request_id=SELF_CHECK) for request in requests])
