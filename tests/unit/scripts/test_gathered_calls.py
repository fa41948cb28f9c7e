"""Requests on threads, and their calls to one model gathered into batches."""

import contextvars
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.tiny_models import PICKY_LIMIT, write_doubler, write_picky

from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.invocation import ScriptCalls
from stoker.system.logs import RequestMarks
from stoker.wire.script_requests import ScriptRequest

PATIENT_S = 30.0
"""Longer than any test: calls are made when all threads wait, not when one has waited long enough."""


class Counting:
    """The library's inner session; it records the calls that reach it."""

    def __init__(self, inner: Any, gathered: "Gathered") -> None:
        self._inner = inner
        self._gathered = gathered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, names: Any, feeds: Any, options: Any) -> Any:
        self._gathered.batches.append(len(feeds["x"]))
        self._gathered.threads.add(threading.current_thread().name)
        return self._inner.run(names, feeds, options)


class Gathered:
    """A script that calls an ONNX model, on threads.

    Attributes:
        batches: Rows of each call that reached the model.
        threads: Names of the threads of these calls.
    """

    def __init__(self, model: Path, run: Callable[[Any, Any], Any], **settings: Any) -> None:
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.session = onnxruntime.InferenceSession(model)
        # Below the interception, which replaces a method of the class.
        self.session._sess = Counting(self.session._sess, self)
        calls = ScriptCalls(lambda raw_data: run(self.session, json.loads(raw_data)))
        self.calls = GatheredCalls(
            calls, **{"max_rows": 64, "max_threads": 16, "wait_s": PATIENT_S, **settings}
        )

    def answers(self, *bodies: Any) -> list[Any]:
        """Return the values that callers get, or the status if it is not 200."""
        requests = [ScriptRequest(b"id%d" % n, json.dumps(body).encode()) for n, body in enumerate(bodies)]
        found = self.calls.answers(requests)
        return [json.loads(answer.body) if answer.status == 200 else answer.status for answer in found]


Make = Callable[..., Gathered]


@pytest.fixture
def gathered(tmp_path: Path) -> Iterator[Make]:
    """Make gathered scripts of the doubler or the picky model; they are closed afterwards."""
    made: list[Gathered] = []

    def make(run: Callable[[Any, Any], Any], *, picky: bool = False, **settings: Any) -> Gathered:
        path = (write_picky if picky else write_doubler)(tmp_path / "model.onnx")
        made.append(Gathered(path, run, **settings))
        return made[-1]

    yield make
    for script in made:
        script.calls.close()


def score(session: Any, rows: list[list[float]]) -> Any:
    """Feed rows to the model."""
    return session.run(None, {"x": np.array(rows, np.float32)})[0].tolist()


def four(number: float) -> list[float]:
    """One row."""
    return [number] * 4


def test_calls_of_all_requests_become_one(gathered: Make) -> None:
    """The call is made on the thread that wants the answers, and each request gets its rows."""
    script = gathered(score)
    assert script.answers([four(1)], [four(2), four(3)], [four(4)]) == [
        [four(2)],
        [four(4), four(6)],
        [four(8)],
    ]
    assert script.batches == [4]
    assert script.threads == {threading.current_thread().name}
    assert script.calls.largest_batch == 3


def test_a_request_without_company_stays_on_its_thread(gathered: Make) -> None:
    """A lone caller does not pay for threads."""
    script = gathered(lambda session, rows: [threading.current_thread().name, *score(session, rows)])
    assert script.answers([four(1)]) == [[threading.current_thread().name, four(2)]]


def test_several_calls_of_a_request_are_gathered_one_after_the_other(gathered: Make) -> None:
    """Requests that call the model never, once or more get their answers."""

    def run(session: Any, body: dict[str, Any]) -> Any:
        rows = [four(body["start"])]
        for _ in range(body["calls"]):
            rows = score(session, rows)
        return rows

    script = gathered(run)
    counts = [2, 0, 1, 3, 2]
    answers = script.answers(*({"start": 1, "calls": count} for count in counts))
    assert answers == [[four(2**count)] for count in counts]
    assert script.batches == [4, 3, 1]


def test_batches_have_at_most_max_rows(gathered: Make) -> None:
    """Further rows go into the next batch; more requests than threads come in turns."""
    script = gathered(score, max_rows=3, max_threads=5)
    answers = script.answers(*([four(n)] for n in range(11)))
    assert answers == [[four(2 * n)] for n in range(11)]
    assert sum(script.batches) == 11
    assert max(script.batches) == 3


def test_calls_that_differ_are_not_gathered(gathered: Make) -> None:
    """Calls for other outputs, or with unknown options, are made apart."""

    def run(session: Any, body: Any) -> Any:
        feeds = {"x": np.array([four(1)], np.float32)}
        if body == "options":
            return session.run(None, feeds, onnxruntime.RunOptions())[0].tolist()
        return session.run(["y"] if body == "named" else None, feeds)[0].tolist()

    script = gathered(run)
    assert script.answers("named", "all", "named") == [[four(2)]] * 3
    assert sorted(script.batches) == [1, 2]
    # A call of unknown kind waits for no others, so it is chance which calls are made with it.
    assert script.answers("options", "options") == [[four(2)]] * 2
    assert sorted(script.batches) == [1, 1, 1, 2]


def test_a_call_that_fails_fails_only_its_request(gathered: Make) -> None:
    """The other calls are made again without it; the script gets the library's own exception."""

    def run(session: Any, rows: Any) -> Any:
        try:
            return score(session, rows)
        except Exception as error:
            if rows[0][1] == 1:
                raise
            return type(error).__name__

    script = gathered(run, picky=True)
    raises, catches = [[PICKY_LIMIT, 1, 0, 0]], [[PICKY_LIMIT, 0, 0, 0]]
    answers = script.answers([four(1)], raises, [four(2)], [four(3)], catches, [four(4)])
    assert answers == [[four(3)], 500, [four(6)], [four(9)], "InvalidArgument", [four(12)]]
    assert script.batches[0] == 6


def test_only_proved_kinds_are_gathered(gathered: Make) -> None:
    """Calls of other kinds are made one by one."""

    def run(session: Any, body: str) -> Any:
        return session.run([body] if body else None, {"x": np.array([four(1)], np.float32)})[0].tolist()

    script = gathered(run)
    _, (example,) = script.calls.record_calls(ScriptRequest(b"id", b'"y"'))
    script.calls.gather_only([example])
    script.batches.clear()
    assert script.answers("y", "", "y", "") == [[four(2)]] * 4
    assert sorted(script.batches) == [1, 1, 2]


def test_recording_the_calls_of_a_request_changes_nothing(gathered: Make) -> None:
    """The record has the calls that could be gathered, with their arguments."""
    script = gathered(score)
    answer, seen = script.calls.record_calls(ScriptRequest(b"id", json.dumps([four(1), four(2)]).encode()))
    assert json.loads(answer.body) == [four(2), four(4)]
    assert [call.name for call in seen] == ["InferenceSession.run"]
    assert seen[0].rows == 2
    assert script.batches == [2]


def slow_beside_quick() -> Callable[[Any, str], Any]:
    """A `run` whose request `slow` makes no call, and ends after a call of another request."""
    made = threading.Event()

    def run(session: Any, body: str) -> Any:
        if body == "slow":
            assert made.wait(PATIENT_S)
            return "slow"
        found = score(session, [four(1)])
        made.set()
        return found

    return run


def test_a_call_waits_for_others_at_most_wait_s(gathered: Make) -> None:
    """While another request does other work, a call is made without it after this time."""
    script = gathered(slow_beside_quick(), wait_s=0.001)
    assert script.answers("slow", "quick") == ["slow", [four(2)]]


def test_a_full_batch_does_not_wait(gathered: Make) -> None:
    """As soon as the rows fill a batch, the calls are made."""
    script = gathered(slow_beside_quick(), max_rows=2)
    assert script.answers("slow", "quick", "quick") == ["slow", [four(2)], [four(2)]]


def test_a_script_that_fails_or_exits_leaves_the_others_alone(gathered: Make) -> None:
    """Calls do not wait for a request that has ended without a call."""

    def run(session: Any, rows: Any) -> Any:
        if rows == "raise":
            raise ValueError("no rows")
        if rows == "exit":
            raise SystemExit(3)
        return score(session, rows)

    script = gathered(run)
    assert script.answers("raise", [four(1)], "exit", [four(2)]) == [500, [four(2)], 500, [four(4)]]
    assert script.batches == [2]


def test_threads_run_in_the_context_of_their_request(gathered: Make) -> None:
    """Log lines of a script have the id of their request, and `run` sees context variables of `init`."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("set_in_init")
    variable.set("seen")
    marked: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: marked.append(f"{record.request}{record.getMessage()}")  # type: ignore[attr-defined]
    handler.addFilter(RequestMarks())
    logger = logging.Logger("script")
    logger.addHandler(handler)

    def run(session: Any, rows: Any) -> Any:
        score(session, rows)
        logger.warning("row %d", rows[0][0])
        return variable.get()

    script = gathered(run)
    assert script.answers([four(0)], [four(1)], [four(2)]) == ["seen"] * 3
    assert sorted(marked) == [f"request id{n}: row {n}" for n in range(3)]


def test_a_lock_around_the_model_does_not_stop_the_script(gathered: Make) -> None:
    """Calls of threads that wait for each other are made one by one."""
    lock = threading.Lock()

    def run(session: Any, rows: Any) -> Any:
        with lock:
            return score(session, rows)

    script = gathered(run, wait_s=0.001)
    assert script.answers(*([four(n)] for n in range(5))) == [[four(2 * n)] for n in range(5)]
    assert script.calls.largest_batch == 0
