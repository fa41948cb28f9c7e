"""Merging is proved with a sample; scripts that look at other rows are refused."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.scripts.checks import ONE_ROW, ROW, TWO_ROWS, merge, sample_of

from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging_check import check_merging
from stoker.scripts.script_sample import Sample
from stoker.scripts.self_check import Disproved

pytestmark = pytest.mark.usefixtures("without_flask")


def merging(run: Callable[[Any], Any], sample: Sample = ONE_ROW, max_rows: int = 16) -> tuple[list[int], str]:
    """Check a script that gets the rows; return the number of rows of each call, and the key."""
    sizes: list[int] = []

    def body_run(raw_data: str) -> Any:
        (rows,) = json.loads(raw_data).values()
        sizes.append(len(rows))
        return run(rows)

    _, key = check_merging(ScriptCalls(body_run), sample, max_rows)
    return sizes, key


def refusal(run: Callable[[Any], Any], sample: Sample = ONE_ROW) -> str:
    """Return the reason why requests to a script are not merged."""
    with pytest.raises(Disproved) as disproved:
        merging(run, sample)
    return str(disproved.value)


@pytest.mark.parametrize(
    "run",
    [
        lambda rows: [sum(row) for row in rows],
        lambda rows: np.array(rows).argmax(axis=1),
        lambda rows: {"label": [max(row) for row in rows], "model": "m"},
        lambda rows: json.dumps([{"score": row[0]} for row in rows]),
        lambda rows: (np.array(rows, np.float32) @ np.ones((4, 3), np.float32)).tolist(),
        lambda rows: [sum(row) * (1 + 1e-5 * len(rows)) for row in rows],
    ],
)
def test_row_by_row_scripts_may_be_merged(run: Callable[[Any], Any]) -> None:
    """Results may be lists, arrays, dicts and texts; fractions may differ in their last digits."""
    sizes, key = merging(run)
    assert key == "data"
    assert sizes[-1] == 16, "the largest batch has been run"
    assert {1, 3, 6} <= set(sizes)


def test_the_only_key_of_the_sample_is_merged() -> None:
    """The key need not be `data`."""
    assert merging(lambda rows: rows, sample_of({"instances": [ROW, ROW]}))[1] == "instances"


def unsteady(rows: Any) -> Any:
    """Answer with a random number."""
    return {"scores": [sum(row) for row in rows], "id": random.random()}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda rows: (np.array(rows) / np.max(rows)).tolist(), "a merged request gets another answer: [0]["),
        (
            lambda rows: (np.array(rows) - np.mean(rows, axis=0)).tolist(),
            "a merged request gets another answer: [0][",
        ),
        (
            lambda rows: np.argsort(np.sum(rows, axis=1)).tolist(),
            "a merged request gets another answer: [0] is",
        ),
        (lambda rows: {"sums": [sum(row) for row in rows], "best": max(map(max, rows))}, "['best'] is"),
        (
            lambda rows: {"sums": [sum(row) for row in rows], "count": len(rows)},
            "['count'] is 1 alone, 3 batched",
        ),
        (lambda rows: [sum(row) for row in rows][::-1], "a merged request gets another answer"),
        (lambda rows: [sum(row) for row in rows][: max(1, len(rows) - 1)], "has 2 entries for 3 rows"),
        (lambda rows: [[1, 2], [sum(map(sum, rows))] * 2], "has 2 entries for 3 rows"),
        (
            lambda rows: {"sums": [sum(row) for row in rows], "classes": [1, 2, 3]},
            "['classes'] is [1, 2, 3] alone, [1] batched",
        ),
        (lambda rows: sum(map(sum, rows)), "the result is float"),
        (lambda rows: f"{len(rows)} rows", "is a text that is not JSON"),
        (lambda rows: [f"{sum(row):.17f}" if len(rows) == 1 else "x" for row in rows], "is '1."),
        (lambda rows: [sum(row) if len(rows) < 4 else 0 for row in rows], "[0] is"),
        (unsteady, "two equal requests got different answers: ['id'] is"),
        (lambda rows: [len(rows)][len(rows) - 1], "a call with 3 rows failed: IndexError"),
        (lambda rows: None, "the result is NoneType"),
    ],
)
def test_a_script_that_looks_at_other_rows_is_refused(run: Callable[[Any], Any], reason: str) -> None:
    """Means, ranks, totals, constants that look like rows, and random numbers are found."""
    assert reason in refusal(run)


def test_a_script_that_fails_for_the_sample_is_not_checked() -> None:
    """The reason names the sample and the exception."""
    assert refusal(lambda rows: 1 / 0) == "run() fails for the sample: ZeroDivisionError: division by zero"


def test_a_script_that_needs_several_rows_is_not_merged() -> None:
    """The script answers the whole sample, but not each of its rows."""
    reason = refusal(lambda rows: [row[0] for row in rows if rows[1]], sample_of({"data": [ROW, ROW]}))
    assert reason == "run() fails for a row of the sample alone: IndexError: list index out of range"


def test_small_batches_are_checked_too() -> None:
    """The check uses batches up to the limit."""
    sizes, _ = merging(lambda rows: [sum(row) for row in rows], max_rows=2)
    assert {size for size in sizes if size > 1} == {2, 3}, "three rows are a request of their own"
    with pytest.raises(Disproved):
        merging(lambda rows: [sum(map(sum, rows))] * len(rows), max_rows=2)


def test_made_up_rows_that_a_script_refuses_are_left_out() -> None:
    """The script may raise or answer with a text; two rows of the sample are enough."""

    def picky(rows: Any) -> Any:
        for row in rows:
            if row[0] == 7:
                raise ValueError("no sevens")
            if row[0] not in (14, 28):
                return "bad request"
        return rows

    sizes, _ = merging(picky, sample_of({"data": [[14, 1], [28, 1]]}))
    assert sizes[-1] == 16
    assert "no two different rows that are answered alike" in refusal(picky, sample_of({"data": [[14, 1]]}))


def test_rows_that_cannot_be_varied_must_be_given() -> None:
    """One picture in base64 is one row; with two of them the check can be made."""
    pictures = {"a": 1, "b": 2}
    assert "put two into it" in refusal(
        lambda rows: [pictures[row] for row in rows], sample_of({"data": ["a"]})
    )
    merging(lambda rows: [pictures[row] for row in rows], sample_of({"data": ["a", "b"]}))


@pytest.mark.parametrize(
    "body", [[[1.0]], {"data": [[1.0]], "top": 3}, {"data": {"a": [1]}}, {"data": []}, "x", {"[": [1]}]
)
def test_a_sample_of_another_form_cannot_be_merged(body: Any) -> None:
    """A sample for merging has one key with a list."""
    with pytest.raises(Disproved, match="the sample is not an object with one key that holds a list"):
        check_merging(ScriptCalls(lambda raw_data: [1]), sample_of(body), 8)


def test_scripts_that_see_one_request_are_not_merged() -> None:
    """Headers and raw requests belong to one caller."""
    with pytest.raises(Disproved, match="request_headers"):
        check_merging(ScriptCalls(lambda raw_data, request_headers: [1]), ONE_ROW, 8)
    with pytest.raises(Disproved, match="@rawhttp"):
        check_merging(ScriptCalls(lambda request: [1], raw=True), ONE_ROW, 8)


def test_the_check_writes_no_error_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Failures of made-up rows are no errors."""

    def run(rows: Any) -> Any:
        if rows[0] != ROW:
            raise ValueError
        return rows

    refusal(run)
    assert not caplog.records


TEXTS = (["a word"], ["another word here"])


def longest(rows: list[list[str]]) -> int:
    return max(len(text) for (text,) in rows)


@pytest.mark.parametrize(
    ("mixing", "apart", "rows"),
    [
        (
            lambda rows: (np.array(rows) + 1e-6 * np.mean(rows, axis=0)).tolist(),
            lambda rows: (np.array(rows) + 1e-6 * np.mean(rows, axis=1, keepdims=True)).tolist(),
            TWO_ROWS,
        ),
        (
            lambda rows: [[-sum(row)] if np.sum(rows) > 100 else [sum(row)] for row in rows],
            lambda rows: [[-sum(row)] if sum(row) > 100 else [sum(row)] for row in rows],
            TWO_ROWS,
        ),
        (
            lambda rows: [len(text) / max(64, longest(rows)) for (text,) in rows],
            lambda rows: [len(text) / 64 for (text,) in rows],
            TEXTS,
        ),
        (
            # A number that is too large for a float32 becomes an infinity, and then NaN for all rows.
            lambda rows: (np.array(rows) - 0 * np.sum(np.array(rows, np.float32))).tolist(),
            lambda rows: (np.array(rows) - 0 * np.sum(np.array(rows, np.float32), 1, keepdims=True)).tolist(),
            TWO_ROWS,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_script_that_lets_rows_influence_each_other_is_not_merged(
    mixing: Callable[[Any], Any], apart: Callable[[Any], Any], rows: tuple[Any, ...]
) -> None:
    """A small influence is enough, and one that only unusual rows have; the same scripts by row are merged."""
    with pytest.raises(Disproved, match="a merged request gets another answer"):
        merge(mixing, *rows)
    merge(apart, *rows)


def test_row_that_a_script_refuses_does_not_disprove_it() -> None:
    """A row for which a script raises says nothing about batching."""

    def picky(rows: Any) -> Any:
        if np.abs(rows).max() > 10:
            raise ValueError("too large")
        return np.sum(rows, axis=1).tolist()

    merge(picky, *TWO_ROWS)


def test_a_script_that_never_answers_alike_is_not_merged() -> None:
    """Equal merged requests must get equal answers: noise could hide the influence of other rows."""
    turns = iter(range(10**6))

    def noisy(rows: Any) -> Any:
        return [sum(row) * (1 + 1e-7 * (next(turns) if len(rows) > 1 else 0)) for row in rows]

    with pytest.raises(Disproved, match="equal merged requests got different answers"):
        merge(noisy, *TWO_ROWS)
