"""Scripts whose `run` answers several requests in one call."""

from __future__ import annotations

import json

from tests.unit.scripts.batch_runs import Run, doubled, fails_for, request_of

from stoker.errors import RequestError, ScoringTimeout
from stoker.scripts.request_batches import RequestBatches


def test_requests_share_a_call() -> None:
    """Each request gets its own answer."""
    run = Run(doubled)
    assert [answer.body for answer in RequestBatches(run).answers([request_of(1), request_of(2)])] == [
        b"2",
        b"4",
    ]
    assert run.calls == [[1, 2]]


def test_in_a_failing_call_only_the_bad_request_fails() -> None:
    """A call that raises is made again in halves, and the others get their answers."""
    run = Run(fails_for(3))
    answers = RequestBatches(run).answers([request_of(number) for number in range(5)])
    assert [answer.status for answer in answers] == [200, 200, 200, 500, 200]
    assert [answer.body for answer in answers if answer.status == 200] == [b"0", b"2", b"4", b"8"]
    assert answers[3].failed
    assert json.loads(answers[3].body)["code"] == "model_failed"


def test_a_script_may_choose_the_answer_to_a_failed_request() -> None:
    """The server answers requests that the script refuses by a RequestError."""
    for error, status in ((ZeroDivisionError, 418), (RequestError, 400)):
        run = Run(fails_for(1, error=error))
        found = RequestBatches(run).answers([request_of(0), request_of(1)])
        assert [answer.status for answer in found] == [200, status]


def test_a_call_that_takes_too_long_is_not_made_again() -> None:
    """Its callers have no time left."""

    def late(numbers: list[int]) -> list[int]:
        raise ScoringTimeout(50)

    run = Run(late)
    answers = RequestBatches(run).answers([request_of(1), request_of(2)])
    assert len(run.calls) == 1
    assert {json.loads(answer.body)["code"] for answer in answers} == {"scoring_timeout"}
