"""Gathering is proved with a sample; models that mix rows, and scripts that mind threads, are refused."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.tiny_models import write_doubler
from tests.unit.scripts.checks import ONE_ROW, ROW, sample_of

from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.gathering_check import check_gathering
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.script_sample import Sample
from stoker.scripts.self_check import Disproved
from stoker.wire.script_requests import RequestHead

pytestmark = pytest.mark.usefixtures("without_flask")

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
    """Work around the calls and the form of requests do not matter."""
    assert gathering(run, sample_of(body)) == ["InferenceSession.run"]


def test_a_sample_that_is_no_json_is_sent_as_it_is(gathering: Check) -> None:
    """A script that takes raw requests gets the picture itself."""
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
def test_a_script_that_cannot_be_gathered_is_refused_with_the_reason(
    gathering: Check, run: Callable[..., Any], reason: str
) -> None:
    """The script makes no call, has no steady answer, or needs the main thread."""
    with pytest.raises(Disproved) as disproved:
        gathering(run)
    assert reason in str(disproved.value)


def test_a_model_that_mixes_rows_is_not_gathered(gathering: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the sample are varied, so that a mean over the batch changes answers."""

    def centred(self: Any, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [feeds["x"] - feeds["x"].mean(axis=0)]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", centred)
    with pytest.raises(
        Disproved,
        match=r"InferenceSession\.run: beside a row of the kind 'other' row 1 of 2 gets another answer",
    ):
        gathering(lambda session, body: double(session, body["data"]).tolist())


def test_a_model_for_one_row_is_not_gathered(gathering: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has the error of the library."""

    def single(self: Any, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        if len(feeds["x"]) != 1:
            raise ValueError("Got invalid dimensions for input: x")
        return [feeds["x"]]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", single)
    with pytest.raises(Disproved, match=r"fails on a batch of two: Got invalid dimensions for input: x$"):
        gathering(lambda session, body: double(session, body["data"]).tolist())


def test_a_lock_around_the_model_is_noticed(gathering: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering is refused, because threads would only cost time."""
    monkeypatch.setattr("stoker.scripts.gathering_check._PATIENCE_S", 0.001)
    lock = threading.Lock()

    def run(session: Any, body: Any) -> Any:
        with lock:
            return double(session, body["data"]).tolist()

    with pytest.raises(Disproved, match="the calls to the model never come together"):
        gathering(run)
