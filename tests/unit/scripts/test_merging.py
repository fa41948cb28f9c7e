"""Requests are merged, answered by one call, and made again in halves if that fails."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import simdjson
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import ScoringTimeout
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import MergedCalls
from stoker.wire.script_requests import (
    RequestHead,
    ScriptAnswer,
    ScriptRequest,
    row_count,
)

PARSER = simdjson.Parser()


def written(rows: Sequence[Any]) -> bytes:
    """A body with these rows."""
    return json.dumps({"data": rows}).encode()


def requests_of(*bodies: bytes, **others: Any) -> list[ScriptRequest]:
    """Requests as a frontend packs them."""
    return [
        ScriptRequest(b"id%d" % place, body, row_count(PARSER, body), **others)
        for place, body in enumerate(bodies)
    ]


class Scripted:
    """A script that records the number of rows of each call."""

    def __init__(self, run: Callable[[list[Any]], Any]) -> None:
        self.sizes: list[int] = []
        self._run = run

    def merged(self, max_rows: int = 256) -> MergedCalls:
        """Return its merged calls."""

        def run(raw_data: str) -> Any:
            rows = json.loads(raw_data)["data"]
            self.sizes.append(len(rows))
            return self._run(rows)

        return MergedCalls(ScriptCalls(run), key="data", max_rows=max_rows)


def bodies(answers: Sequence[ScriptAnswer]) -> list[Any]:
    """Return the values that callers get, or the status if it is not 200."""
    return [json.loads(answer.body) if answer.status == 200 else answer.status for answer in answers]


def test_requests_are_answered_by_one_call() -> None:
    """Each request gets the part for its rows, with the time of the call."""
    script = Scripted(lambda rows: [row * 10 for row in rows])
    answers = script.merged().answers(requests_of(written([1]), written([2, 3]), written([4])))
    assert bodies(answers) == [[10], [20, 30], [40]]
    assert script.sizes == [4]
    assert {answer.exec_ns for answer in answers} == {answers[0].exec_ns}
    assert answers[0].exec_ns is not None


def test_merged_calls_have_at_most_max_rows() -> None:
    """A request with more rows is called alone."""
    script = Scripted(lambda rows: rows)
    sizes = [3, 1, 1, 9, 2, 1]
    answers = script.merged(max_rows=4).answers(requests_of(*(written([0] * size) for size in sizes)))
    assert [len(body) for body in bodies(answers)] == sizes
    assert script.sizes == [4, 1, 9, 3]


def test_merged_bodies_have_at_most_merged_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further requests go into the next call."""
    monkeypatch.setattr("stoker.scripts.merging.MERGED_BYTES", 3 * len(written([0])))
    script = Scripted(lambda rows: rows)
    script.merged().answers(requests_of(*[written([0])] * 7))
    assert script.sizes == [3, 3, 1]


def test_rows_of_different_types_are_not_merged() -> None:
    """One caller's fractions do not change another caller's answer."""
    script = Scripted(lambda rows: np.array(rows).tolist())
    sent = [
        written([[1]]),
        written([[1.5]]),
        written([[2]]),
        written([[2.5]]),
        b'{"other": 1, "data": [[3]]}',
    ]
    assert bodies(script.merged().answers(requests_of(*sent))) == [[[1]], [[1.5]], [[2]], [[2.5]], [[3]]]
    assert script.sizes == [2, 2, 1]


def test_requests_of_different_content_types_are_not_merged() -> None:
    """The head of a merged call is that of its first request."""
    heads = [RequestHead("POST", "/", "", [("Content-Type", kind)], "") for kind in ("text/a", "text/b")]
    seen: list[Any] = []

    def run(raw_data: str, request_headers: dict[str, str]) -> list[int]:
        rows = json.loads(raw_data)["data"]
        seen.append((request_headers["Content-Type"], len(rows)))
        return list(rows)

    merged = MergedCalls(ScriptCalls(run), key="data", max_rows=8)
    merged.answers([requests_of(written([1]), head=heads[place % 2])[0] for place in range(5)])
    assert seen == [("text/a", 3), ("text/b", 2)]


def failing(rows: list[Any]) -> list[Any]:
    """Raise for a 13, leave for a 14, answer a 15 with a text."""
    if 13 in rows:
        raise ValueError("thirteen")
    if 14 in rows:
        raise SystemExit(1)
    return "no fifteen here" if 15 in rows else rows  # type: ignore[return-value]


@given(st.lists(st.sampled_from([1, 2, 3, 13, 14, 15]), min_size=1, max_size=12))
@STEADY
def test_merged_requests_fail_only_if_they_fail_alone(sent: list[int]) -> None:
    """In any merged call each request gets the answer that it gets alone."""
    script = Scripted(failing)
    merged = script.merged()
    alone = [merged.answers(requests_of(written([row])))[0] for row in sent]
    together = merged.answers(requests_of(*(written([row]) for row in sent)))
    assert bodies(together) == bodies(alone)
    assert [answer.failed for answer in together] == [row in (13, 14) for row in sent]


def test_one_bad_request_costs_few_calls() -> None:
    """Halving finds it."""
    script = Scripted(failing)
    answers = script.merged().answers(requests_of(*(written([13 if n == 5 else 1]) for n in range(16))))
    assert bodies(answers) == [[1]] * 5 + [500] + [[1]] * 10
    assert len(script.sizes) <= 1 + 2 * math.log2(16)


def test_a_part_that_cannot_be_sent_is_run_alone() -> None:
    """The other requests keep their part of the merged call."""
    script = Scripted(lambda rows: [object() if row == 13 else row for row in rows])
    assert bodies(script.merged().answers(requests_of(*map(written, ([1], [13], [2]))))) == [[1], 500, [2]]
    assert script.sizes == [3, 1]


def test_a_merged_call_that_times_out_is_not_tried_again() -> None:
    """Its callers have no time left."""
    script = Scripted(lambda rows: rows)

    class Late(ScriptCalls):
        def invoke(self, *args: Any) -> Any:
            super().invoke(*args)
            raise ScoringTimeout(5)

    def run(raw_data: str) -> None:
        script.sizes.append(len(json.loads(raw_data)["data"]))

    answers = MergedCalls(Late(run), key="data", max_rows=8).answers(requests_of(*map(written, ([1], [2]))))
    assert [json.loads(answer.body)["message"] for answer in answers] == ["Scoring timeout after 5 ms"] * 2
    assert script.sizes == [2]
