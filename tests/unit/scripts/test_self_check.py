"""The self-check: what it proves, and which scripts give themselves away."""

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.tiny_models import write_doubler

from stoker.scripts import self_check as self_check_module
from stoker.scripts.batching import check_gathering, check_merging
from stoker.scripts.handles import GatheredCalls
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.self_check import Disproved, Sample, answer_difference, difference, variations
from stoker.wire.script_requests import RequestHead, ScriptAnswer

pytestmark = pytest.mark.usefixtures("without_flask")

ROW = [0.1, 0.2, 0.3, 0.4]


def sample_of(body: Any) -> Sample:
    """A sample with this body."""
    return Sample(json.dumps(body).encode(), "application/json", "the sample")


ONE_ROW = sample_of({"data": [ROW]})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)


def merging(run: Callable[[Any], Any], sample: Sample = ONE_ROW, max_rows: int = 16) -> tuple[list[int], str]:
    """Check a script that gets the rows; returns how many each of its calls had, and the key."""
    sizes: list[int] = []

    def body_run(raw_data: str) -> Any:
        (rows,) = json.loads(raw_data).values()
        sizes.append(len(rows))
        return run(rows)

    _, key = check_merging(ScriptCalls(body_run), sample, max_rows)
    return sizes, key


def refusal(run: Callable[[Any], Any], sample: Sample = ONE_ROW) -> str:
    """Why requests to a script are not merged."""
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
    """Lists, arrays, dicts and texts; fractions may differ in their last digits."""
    sizes, key = merging(run)
    assert key == "data"
    assert sizes[-1] == 16, "the largest batch has been run"
    assert {1, 3, 6} <= set(sizes)


def test_the_only_key_of_the_sample_is_merged() -> None:
    """Not all scripts call it data."""
    assert merging(lambda rows: rows, sample_of({"instances": [ROW, ROW]}))[1] == "instances"


def unsteady(rows: Any) -> Any:
    """An answer with a number of its own."""
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
def test_a_script_that_looks_at_other_rows_gives_itself_away(run: Callable[[Any], Any], reason: str) -> None:
    """Means, ranks, totals, constants that look like rows, and what is different each time."""
    assert reason in refusal(run)


def test_a_script_that_fails_for_the_sample_is_not_checked() -> None:
    """The reason names the sample and the exception."""
    assert refusal(lambda rows: 1 / 0) == "run() fails for the sample: ZeroDivisionError: division by zero"


def test_a_script_that_needs_several_rows_is_not_merged() -> None:
    """The sample as a whole is answered, but not each of its rows."""
    reason = refusal(lambda rows: [row[0] for row in rows if rows[1]], sample_of({"data": [ROW, ROW]}))
    assert reason == "run() fails for a row of the sample alone: IndexError: list index out of range"


def test_small_batches_are_checked_too() -> None:
    """Companies are as large as they may be."""
    sizes, _ = merging(lambda rows: [sum(row) for row in rows], max_rows=2)
    assert {size for size in sizes if size > 1} == {2, 3}, "three rows are a request of their own"
    with pytest.raises(Disproved):
        merging(lambda rows: [sum(map(sum, rows))] * len(rows), max_rows=2)


def test_made_up_rows_that_a_script_refuses_are_left_out() -> None:
    """Whether it raises for them or answers with a text; two rows of the sample are enough."""

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
    """It takes one key with a list."""
    with pytest.raises(Disproved, match="the sample is not an object with one key that holds a list"):
        check_merging(ScriptCalls(lambda raw_data: [1]), sample_of(body), 8)


def test_scripts_that_see_one_request_are_not_merged() -> None:
    """Headers and raw requests belong to one caller."""
    with pytest.raises(Disproved, match="request_headers"):
        check_merging(ScriptCalls(lambda raw_data, request_headers: [1]), ONE_ROW, 8)
    with pytest.raises(Disproved, match="@rawhttp"):
        check_merging(ScriptCalls(lambda request: [1], raw=True), ONE_ROW, 8)


def test_the_check_writes_no_error_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Rows that were made up may fail; that is nobody's fault."""

    def run(rows: Any) -> Any:
        if rows[0] != ROW:
            raise ValueError
        return rows

    refusal(run)
    assert not caplog.records


Check = Callable[..., list[str]]


@pytest.fixture
def gathering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Check a script that gets an ONNX session and the body; its threads end afterwards."""
    session = onnxruntime.InferenceSession(write_doubler(tmp_path / "model.onnx"))
    made: list[GatheredCalls] = []

    def check(run: Callable[[Any, Any], Any], sample: Sample = ONE_ROW, **settings: Any) -> list[str]:
        def body_run(raw_data: str) -> Any:
            return run(session, json.loads(raw_data))

        calls = ScriptCalls(body_run, **settings)
        made.append(GatheredCalls(calls, max_rows=16, max_threads=8))
        return check_gathering(calls, sample, made[-1], 16)

    yield check
    for calls in made:
        calls.close()


def double(session: Any, rows: Any) -> Any:
    """Feed rows to the model."""
    return session.run(None, {"x": np.array(rows, np.float32)})[0]


@pytest.mark.parametrize(
    ("run", "body"),
    [
        (lambda session, body: double(session, body["data"]).tolist(), {"data": [ROW]}),
        (
            lambda session, body: float(double(session, [body["numbers"]]).sum()),
            {"numbers": ROW, "unit": "cm"},
        ),
        (lambda session, body: f"{double(session, [[1] * 4])}", ["any", "thing"]),
        (lambda session, body: {"max": double(session, body).max(), "n": len(body)}, [ROW, ROW]),
    ],
)
def test_calls_to_a_model_may_be_gathered(gathering: Check, run: Callable[..., Any], body: Any) -> None:
    """Whatever a script does around its calls, and whatever its requests look like."""
    assert gathering(run, sample_of(body)) == ["InferenceSession.run"]


def test_a_sample_that_is_no_json_is_sent_as_it_is(gathering: Check) -> None:
    """Pictures for a script that takes raw requests."""
    calls = ScriptCalls(lambda raw_data: raw_data)
    assert calls.wants_head is False
    picture = Sample(b"\xff\xd8 not json", "image/jpeg", "sample.jpg")
    assert picture.request(with_head=True).head == RequestHead(
        "POST", "/score", "", [("content-type", "image/jpeg"), ("content-length", "11")], "127.0.0.1"
    )
    with pytest.raises(Disproved, match=r"run\(\) fails for sample\.jpg: MalformedBody"):
        gathering(lambda session, body: 1, picture)


counter = itertools.count()


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda session, body: 1, "run() calls no model that is known"),
        (
            lambda session, body: [double(session, [ROW]).tolist(), next(counter)],
            "two equal requests got different",
        ),
        (
            lambda session, body: [
                double(session, [ROW]).tolist(),
                threading.current_thread() is threading.main_thread(),
            ],
            "a request on another thread gets another answer: [1] is True alone, False batched",
        ),
        (lambda session, body: 1 / 0, "run() fails for the sample: ZeroDivisionError"),
    ],
)
def test_a_script_that_cannot_be_gathered_is_told_why(
    gathering: Check, run: Callable[..., Any], reason: str
) -> None:
    """No call, no steady answer, or a thread that it minds."""
    with pytest.raises(Disproved) as disproved:
        gathering(run)
    assert reason in str(disproved.value)


def test_a_model_that_mixes_rows_is_not_gathered(gathering: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the sample's input are varied, so that a mean over the batch shows."""

    def centred(self: Any, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [feeds["x"] - feeds["x"].mean(axis=0)]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", centred)
    with pytest.raises(
        Disproved,
        match=r"InferenceSession\.run: beside a row of the kind 'other' row 1 of 2 gets another answer",
    ):
        gathering(lambda session, body: double(session, body["data"]).tolist())


def test_a_model_for_one_row_is_not_gathered(gathering: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has the library's words."""

    def single(self: Any, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        if len(feeds["x"]) != 1:
            raise ValueError("Got invalid dimensions for input: x")
        return [feeds["x"]]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", single)
    with pytest.raises(Disproved, match=r"fails on a batch of two: Got invalid dimensions for input: x$"):
        gathering(lambda session, body: double(session, body["data"]).tolist())


def test_a_lock_around_the_model_is_noticed(gathering: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads would only cost time."""
    monkeypatch.setattr("stoker.scripts.batching._PATIENCE_S", 0.001)
    lock = threading.Lock()

    def run(session: Any, body: Any) -> Any:
        with lock:
            return double(session, body["data"]).tolist()

    with pytest.raises(Disproved, match="the calls to the model never come together"):
        gathering(run)


@given(st.lists(JSON, min_size=1, max_size=3), st.integers(1, 6))
@STEADY
def test_variations_differ_and_keep_their_structure(rows: list[Any], count: int) -> None:
    """Keys, lengths and types stay; the rows that were given come first; it is the same each time."""

    def outline(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: outline(item) for key, item in value.items()}
        return [outline(item) for item in value] if isinstance(value, list) else type(value)

    made = variations(rows, count)
    assert 1 <= len(made) <= count
    assert len(set(map(repr, made))) == len(made)
    given_rows = list({repr(row): row for row in rows[:count]}.values())
    assert repr(made[: len(given_rows)]) == repr(given_rows)
    outlines = [repr(outline(row)) for row in given_rows]
    assert all(repr(outline(row)) in outlines for row in made)
    assert repr(variations(rows, count)) == repr(made)


def test_large_rows_without_variations_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of zeros cannot be varied: that is found out in a few attempts, of half a second each."""
    attempts = []
    made = self_check_module.vary

    def counted(*args: Any) -> Any:
        attempts.append(1)
        return made(*args)

    monkeypatch.setattr(self_check_module, "vary", counted)
    monkeypatch.setattr(self_check_module, "_MOST_FRUITLESS_LEAVES", 250)
    zeros = [0.0] * 100
    assert variations([zeros], 6) == [zeros]
    assert len(attempts) == 3


@pytest.mark.parametrize(
    "row", [[0.0, 1.0, 0.5], [3, 0, 255, 7], {"a": 3, "b": 5.0}, 12.0, "the quick brown fox jumps"]
)
def test_most_rows_have_enough_variations(row: Any) -> None:
    """Numbers, tables and texts; also in size, or a script that scales by the largest would pass."""
    made = variations([row], 6)
    assert len(made) == 6
    if isinstance(row, list):
        assert len({max(other) for other in made}) > 1


@given(JSON)
@STEADY
def test_equal_values_agree(value: Any) -> None:
    """Whatever they are."""
    assert difference(value, json.loads(json.dumps(value))) is None


@pytest.mark.parametrize(
    ("alone", "batched", "differs"),
    [
        ([0.5, 100.0], [0.5004, 100.05], None),
        ([0.0, 1.0], [0.0005, 1.0], None),
        ([0.0, 0.01], [0.0005, 0.01], "[0] is 0.0 alone, 0.0005 batched"),
        (1e-7, 2e-7, None),
        (0.5, 0.501, "the answer is 0.5 alone, 0.501 batched"),
        (float("nan"), float("nan"), None),
        ([float("inf"), 1.0], [float("inf"), 1.0], None),
        ([float("inf"), 1.0], [1.0, 1.0], "[0] is inf alone, 1.0 batched"),
        (1, 1.0, "the answer is 1 alone, 1.0 batched"),
        (1, True, "the answer is 1 alone, True batched"),
        (None, 0, "the answer is None alone, 0 batched"),
        ([1, 2], [1, 3], "[1] is 2 alone, 3 batched"),
        ([1, 2], [1], "the answer is [1, 2] alone, [1] batched"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the answer is {'a': 1, 'b': 2} alone, {'b': 2, 'a': 1} batched"),
        ({"a": ["x", "y"]}, {"a": ["x", "z"]}, "['a'][1] is 'y' alone, 'z' batched"),
        ('[{"p": 0.25}]', '[{"p": 0.25000001}]', None),
        ('[{"p": 0.25}]', '[{"p": 0.75}]', "[0]['p'] is 0.25 alone, 0.75 batched"),
        ("[oops", "[oops ", "the answer is '[oops' alone, '[oops ' batched"),
        ("7.1", "7.2", "the answer is '7.1' alone, '7.2' batched"),
        (np.float32([[1, 2]]), np.float32([[1, 2.001]]), None),
        (np.float32([[1, 2]]), np.float32([[1, 2.1]]), "[0][1] is 2.0 alone, 2.0999999046325684 batched"),
        (np.int64([1]), np.float32([1]), "the answer is int64[1] alone, float32[1] batched"),
        ([np.array(["a"], object)], [np.array(["b"], object)], "[0] is 'a' alone, 'b' batched"),
    ],
)  # fmt: skip
def test_answers_agree_or_the_difference_is_named(alone: Any, batched: Any, differs: str | None) -> None:
    """Fractions within a thousandth of the largest in their list, all else exactly."""
    assert difference(alone, batched) == differs


@pytest.mark.parametrize(
    ("alone", "batched", "differs"),
    [
        (ScriptAnswer(b"[1.0]", exec_ns=1), ScriptAnswer(b"[1.00000001]", exec_ns=2), None),
        (ScriptAnswer(b"[1]"), ScriptAnswer(b"[1]", status=500), "status 200 alone, 500 batched"),
        (ScriptAnswer(b"a"), ScriptAnswer(b"b"), "b'a' alone, b'b' batched"),
    ],
)
def test_whole_answers_are_compared(alone: ScriptAnswer, batched: ScriptAnswer, differs: str | None) -> None:
    """Status, header lines and body; not the time that it took."""
    assert answer_difference(alone, batched) == differs
