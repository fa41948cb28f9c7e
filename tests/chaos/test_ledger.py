"""The ledger and the judges: a fault that they miss here would be missed in a run."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
from tests.chaos.ledger import Allowance, Ledger, Outcome, Verdict
from tests.chaos.questions import HTTP_PROTOCOLS, judge_http, rows_of
from tests.http.raw_http import Answer


def lost(sent_s: float, ended_s: float, port: int = 1) -> Outcome:
    return Outcome(Verdict.LOST, "azure", "reset", sent_s, ended_s, port)


def settled(ledger: Ledger, *outcomes: Outcome) -> Ledger:
    for outcome in outcomes:
        ledger.settle(ledger.ask(outcome.protocol), outcome)
    return ledger


def answer(status: int, content: object, *headers: tuple[str, str]) -> Answer:
    return Answer(b"", status, headers, json.dumps(content).encode())


def test_a_request_is_settled_once() -> None:
    """A second verdict, or one of another kind of request, is a fault of the harness and ends the run."""
    ledger = Ledger()
    number = ledger.ask("azure")
    assert ledger.open == 1
    ledger.settle(number, lost(0, 1))
    assert (ledger.open, ledger.count(Verdict.LOST)) == (0, 1)
    with pytest.raises(KeyError):
        ledger.settle(number, lost(0, 1))
    with pytest.raises(AssertionError):
        ledger.settle(ledger.ask("grpc"), lost(0, 1))


def test_failure_without_an_allowance_breaks_a_promise() -> None:
    """An allowance holds for its verdict, time, connections and number; each request is judged once."""
    ledger = Ledger()
    ledger.allow(Allowance("frontend killed", Verdict.LOST, lambda one: one.port == 1, 2, 10.0, 11.0))
    before, after, other, too_many = lost(8, 9), lost(11.5, 12), lost(9, 10.5, port=2), lost(10, 11)
    refused = Outcome(Verdict.REFUSED, "azure", "not_ready", 10, 10.5, 1)
    settled(ledger, lost(9, 10.5), before, lost(11, 13), after, other, too_many, refused)
    assert ledger.broken() == [before, after, other, too_many, refused]
    assert ledger.broken() == []
    assert ledger.costs == {("frontend killed", Verdict.LOST): 2}


def test_nothing_is_allowed_after_its_end() -> None:
    """When the server is whole again, what was allowed until then costs no later request anything."""
    ledger = Ledger()
    ledger.allow(Allowance("device stopped", Verdict.LATE, from_s=1.0))
    ledger.end_allowances(5.0)
    early, later = (
        Outcome(Verdict.LATE, "grpc", "deadline_exceeded", sent_s, sent_s + 3) for sent_s in (4, 6)
    )
    assert settled(ledger, early, later).broken() == [later]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (answer(200, {"y": [[2, 0, 0, 4]], "v": [[3]]}), Verdict.RIGHT),
        (answer(200, {"y": [[2, 0, 0, 5]], "v": [[3]]}), Verdict.WRONG),
        (answer(200, {"y": [[2, 0, 0, 4]] * 2, "v": [[3], [4]]}), Verdict.WRONG),
        (answer(503, {"code": "not_ready"}, ("retry-after", "1")), Verdict.REFUSED),
        (answer(503, {"code": "not_ready"}), Verdict.WRONG),
        (answer(504, {"code": "deadline_exceeded"}), Verdict.LATE),
        (answer(500, {"code": "model_failed"}), Verdict.WRONG),
        (answer(404, {"code": "unknown_service"}), Verdict.WRONG),
        (answer(401, {"code": "unauthorized"}), Verdict.WRONG),
    ],
)
def test_only_the_one_right_answer_is_right(given: Answer, verdict: Verdict) -> None:
    """Another number is wrong; so is an error that tells nobody when to come again."""
    question = HTTP_PROTOCOLS["azure"](1, Random(1), {3})
    assert rows_of(1, Random(1)).tolist() == [[1, 0, 0, 2]]
    assert judge_http(question, given)[0] is verdict


def test_an_answer_of_another_version_or_request_is_wrong() -> None:
    """The model says which version has run, and the rows of each request are its own."""
    random = Random(1)
    question = HTTP_PROTOCOLS["v2 json"](1, random, ())
    outputs = [
        {"name": "y", "shape": [1, 4], "data": [2, 0, 0, 4]},
        {"name": "v", "shape": [1, 1], "data": [3]},
    ]
    content = {"id": "1", "model_version": "3", "outputs": outputs}
    assert judge_http(question, answer(200, content)) == (Verdict.RIGHT, "")
    for changed, complaint in (({"model_version": "2"}, "answered as version 2"), ({"id": "2"}, "came to 1")):
        verdict, wrong = judge_http(question, answer(200, {**content, **changed}))
        assert (verdict, complaint in wrong) == (Verdict.WRONG, True)
    labelled = HTTP_PROTOCOLS["label"](1, Random(1), {2})
    predicted = {"predictions": [{"y": [2, 0, 0, 4], "v": [3]}]}
    assert judge_http(labelled, answer(200, predicted))[0] is Verdict.WRONG


def test_rows_of_different_requests_are_different() -> None:
    """An answer that went astray is seen as wrong."""
    first = np.concatenate([rows_of(number, Random(0)) for number in range(1, 2000)])
    assert len(np.unique(first, axis=0)) == len(first)
