"""Scripts whose `run` answers several requests in one call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.deployment import Deployment
from stoker.errors import RequestError, ScoringTimeout
from stoker.script_form import ScriptForm
from stoker.scripts.request_batches import (
    MAX_UNASKED,
    BatchRun,
    RequestBatches,
    choose_request_batches,
)
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest


class Run(BatchRun):
    """Answers numbers with what a function makes of all of them."""

    def __init__(self, compute: Callable[[list[int]], Sequence[Any]], examples: Sequence[int] = ()) -> None:
        self.compute, self.numbers = compute, examples
        self.calls: list[list[int]] = []

    def __call__(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        numbers = [int(request.body) for request in requests]
        self.calls.append(numbers)
        return [ScriptAnswer(json.dumps(answer).encode()) for answer in self.compute(numbers)]

    def examples(self, deployment: Deployment, count: int) -> list[ScriptRequest]:
        return [asked(number) for number in self.numbers[:count]]

    def refusal(self, error: Exception) -> ScriptAnswer | None:
        return ScriptAnswer(b"own", 418) if isinstance(error, ZeroDivisionError) else None


def asked(number: int) -> ScriptRequest:
    return ScriptRequest(b"7", str(number).encode())


def deployment(**settings: Any) -> Deployment:
    settings = {"max_batch_rows": 256, **settings}
    return Deployment("m", 1, "script", Path("s.py"), Path(), max_body_bytes=1 << 20, **settings)


def chosen(run: Run, **settings: Any) -> ScriptForm:
    return choose_request_batches(run, deployment(**settings), RequestBatches(run))


def doubled(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


def fails_for(*bad: int, error: type[Exception] = ValueError) -> Callable[[list[int]], list[int]]:
    def compute(numbers: list[int]) -> list[int]:
        if set(bad) & set(numbers):
            raise error("bad")
        return doubled(numbers)

    return compute


def test_requests_share_a_call() -> None:
    """Each gets its own answer."""
    run = Run(doubled)
    assert [answer.body for answer in RequestBatches(run).answers([asked(1), asked(2)])] == [b"2", b"4"]
    assert run.calls == [[1, 2]]


def test_only_what_fails_alone_fails() -> None:
    """A call that raises is made again in halves, and the others get their answers."""
    run = Run(fails_for(3))
    answers = RequestBatches(run).answers([asked(number) for number in range(5)])
    assert [answer.status for answer in answers] == [200, 200, 200, 500, 200]
    assert [answer.body for answer in answers if answer.status == 200] == [b"0", b"2", b"4", b"8"]
    assert answers[3].failed
    assert json.loads(answers[3].body)["code"] == "model_failed"


def test_a_script_may_say_itself_what_its_caller_is_told() -> None:
    """But of requests that it refuses as the server does it is not asked."""
    for error, status in ((ZeroDivisionError, 418), (RequestError, 400)):
        run = Run(fails_for(1, error=error))
        found = RequestBatches(run).answers([asked(0), asked(1)])
        assert [answer.status for answer in found] == [200, status]


def test_a_call_that_takes_too_long_is_not_made_again() -> None:
    """Its callers have waited for as long as they may."""

    def late(numbers: list[int]) -> list[int]:
        raise ScoringTimeout(50)

    run = Run(late)
    answers = RequestBatches(run).answers([asked(1), asked(2)])
    assert len(run.calls) == 1
    assert {json.loads(answer.body)["code"] for answer in answers} == {"scoring_timeout"}


def test_examples_that_agree_let_requests_share_calls() -> None:
    """As many as nobody has asked for at most; the largest call has been made."""
    run = Run(doubled, [1, 2, 3])
    form = chosen(run)
    assert (form.batching, form.max_requests, form.kind, form.wants_head) == (
        "requests",
        MAX_UNASKED,
        "raw",
        True,
    )
    assert max(map(len, run.calls)) == MAX_UNASKED
    assert chosen(Run(doubled, [1, 2]), max_batch_rows=64, batching="rows").max_requests == 64


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (
            lambda numbers: [number - max(numbers) for number in numbers],
            "a request among others gets another answer",
        ),
        (lambda numbers: sorted(doubled(numbers)), "a request among others gets another answer"),
        (lambda numbers: doubled(numbers)[:1], "a call with 2 requests failed: ValueError: run.. returned 1"),
        (fails_for(1), "fails for the first example"),
        (fails_for(2, 3), "no second example"),
    ],
)
def test_disproved_script_is_not_batched(compute: Callable[..., Any], reason: str) -> None:
    """A script that was seen to mix requests is not batched, even if the operator has declared it."""
    for settings in ({}, {"batching": "rows"}):
        form = chosen(Run(compute, [1, 2, 3]), **settings)
        assert (form.batching, form.max_requests) == ("none", 1)
        assert re.search(reason, form.batching_reason), form.batching_reason


def test_without_examples_the_operator_decides() -> None:
    """And nobody else vouches for a handler."""
    form = chosen(Run(doubled))
    assert (form.batching, form.max_requests) == ("none", 1)
    assert form.batching_reason.startswith("there is no sample input to check it with: put sample_input.json")
    form = chosen(Run(doubled), batching="rows", max_batch_rows=8)
    assert (form.batching, form.max_requests) == ("requests", 8)
    assert form.batching_reason.startswith("asked for, unchecked")
    assert chosen(Run(doubled, [1, 2]), batching="none").batching_reason == "asked for"
    assert chosen(Run(doubled, [1, 2]), max_batch_rows=1).max_requests == 1
