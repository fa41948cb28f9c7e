"""Entry scripts with state: what `run` is given, and when what it makes of that counts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.device.loading import load
from stoker.errors import LoadFailed, ScoringTimeout
from stoker.runtimes import script as script_module
from stoker.runtimes.script_sequences import SequenceBodyScript, SequenceRowsScript
from stoker.scripts.call_watchdog import Watchdog
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, SequenceStep
from stoker.settings.sequence import read_sequence
from stoker.wire.script_requests import HEAD_ROOM_BYTES, RequestHead, ScriptAnswer, ScriptRequest

pytestmark = pytest.mark.usefixtures("without_flask")

CPU = Device("cpu", 0, "a processor")
Load = Callable[..., Any]
MOST_BYTES = 1000

REMEMBERS = """
import json
import threading

def init(): ...

def run(raw_data, state, sequence_start, sequence_end):
    item = json.loads(raw_data)
    items = state.setdefault("items", [])
    items.append(item)
    if item == "raise":
        raise ValueError("no")
    if item == "exit":
        raise SystemExit(1)
    if item == "unwritable":
        return object()
    if item == "long":
        return "x" * 400000
    if item == "lock":
        state["lock"] = threading.Lock()
    return [items, sequence_start, sequence_end]
"""
ADDS = """
import stoker
import numpy as np

def init(): ...

@stoker.batched(shape=(2,), dtype="float32")
def run(data, states):
    sums = []
    for row, state in zip(data, states):
        state["sum"] = state.get("sum", np.zeros(2, np.float32))
        state["sum"] += row
        sums.append(state["sum"].copy())
    if (data == 13).any():
        raise ValueError("unlucky")
    return np.array(sums)
"""


class Watched:
    """The clock of the watchdogs of scripts, and the watchdogs, whose threads are not started.

    Attributes:
        ahead_ms: By how much the clock is ahead of the machine's.
    """

    def __init__(self) -> None:
        self.watchdogs: list[Watchdog] = []
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.ahead_ms * 1_000_000

    def interrupt_late_calls(self) -> None:
        """Let the time of all calls be over, once."""
        (watchdog,) = self.watchdogs
        self.ahead_ms = watchdog.timeout_ms
        watchdog.check_calls()
        self.ahead_ms = 0


@pytest.fixture
def watched() -> Watched:
    """Return the clock of the watchdog of a script."""
    return Watched()


@pytest.fixture
def load_stateful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: Watched) -> Iterator[Load]:
    """Return a function that loads a script with state; changes of the process are undone afterwards."""
    environ = {name: value for name, value in os.environ.items() if name != "AML_APP_ROOT"}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def start(watchdog: Watchdog) -> None:
        watched.watchdogs.append(watchdog)

    monkeypatch.setattr(Watchdog, "start", start)
    monkeypatch.setattr(script_module, "Watchdog", partial(Watchdog, clock_ns=watched))

    def load_script(text: str, sequence: dict[str, Any] | None = None, **more: Any) -> Any:
        script = tmp_path / "score.py"
        script.write_text(text)
        kept = None if more.pop("stateless", False) else read_sequence(sequence or {})
        deployment = Deployment("m", 1, "script", script, tmp_path, 8, MOST_BYTES, sequence=kept, **more)
        return load(deployment, CPU).runtime

    yield load_script
    sys.modules.pop("entry_module", None)


def words(name: int | str, flags: int = 0) -> np.ndarray:
    """Return the words of a row."""
    return np.array([SequenceStep(name, bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END)).words("")])


def answer(
    runtime: SequenceBodyScript, item: Any, name: int, flags: int = 0, head: Any = None
) -> ScriptAnswer:
    """Return the answer to a request, run as the worker of a model with state runs it."""
    row = words(name, flags)
    first, second, _ = row[0].tolist()
    assert runtime.states.admit((first, second), start=bool(flags & SEQUENCE_START)) is None
    ((packed,),) = runtime.run([[ScriptRequest(b"id", json.dumps(item).encode(), 0, head).pack()], row])
    runtime.states.release((first, second))
    return ScriptAnswer.unpack(packed)  # type: ignore[arg-type]  # a text, no failure


def result(answer: ScriptAnswer) -> Any:
    """Return the result of an answer with status 200."""
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_run_continues_from_the_state_of_its_sequence(load_stateful: Load) -> None:
    """The state is empty at first; arguments have the start and the end of the sequence."""
    runtime = load_stateful(REMEMBERS)
    assert runtime.signature.sequences
    assert result(answer(runtime, 1, 7, SEQUENCE_START)) == [[1], True, False]
    assert result(answer(runtime, 2, 8, SEQUENCE_START)) == [[2], True, False]
    assert result(answer(runtime, 3, 7)) == [[1, 3], False, False]
    assert result(answer(runtime, 4, 7, SEQUENCE_END)) == [[1, 3, 4], False, True]
    assert result(answer(runtime, 5, 8, SEQUENCE_START)) == [[5], True, False]
    assert runtime.states.counts == (1, 3, 1, 0)


@pytest.mark.parametrize("item", ["raise", "exit", "unwritable", "long"])
def test_error_does_not_change_the_state(load_stateful: Load, item: str) -> None:
    """`run` had changed its copy; a sequence does not begin by an error either."""
    runtime = load_stateful(REMEMBERS)
    result(answer(runtime, 1, 7, SEQUENCE_START))
    failed = answer(runtime, item, 7)
    assert (failed.status >= 400) or len(failed.pack()) > MOST_BYTES + HEAD_ROOM_BYTES
    assert result(answer(runtime, 2, 7)) == [[1, 2], False, False]
    answer(runtime, item, 8, SEQUENCE_START)
    assert runtime.states.counts.live == 1


def test_response_with_the_status_of_an_error_does_not_change_the_state(load_stateful: Load) -> None:
    """A status of the script counts like an error of the server."""
    runtime = load_stateful(
        """
from azureml.contrib.services.aml_response import AMLResponse

def init(): ...

def run(raw_data, state):
    state["n"] = state.get("n", 0) + 1
    return AMLResponse(str(state["n"]), 409 if raw_data == "0" else 201)
"""
    )
    assert [
        answer(runtime, item, 7, SEQUENCE_START * (not place)).body for place, item in enumerate((1, 0, 1))
    ] == [
        b"1",
        b"2",
        b"2",
    ]


def test_state_that_cannot_be_copied_is_an_error(
    load_stateful: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """The next request fails and the log has the reason; the sequence can start again."""
    runtime = load_stateful(REMEMBERS)
    result(answer(runtime, "lock", 7, SEQUENCE_START))
    assert answer(runtime, 1, 7).status == 500
    assert "the state of the sequence holds what cannot be copied" in caplog.text
    assert result(answer(runtime, 1, 7, SEQUENCE_START)) == [[1], True, False]


def test_a_state_that_cannot_be_copied_is_no_fault_of_the_body(
    load_stateful: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """The body may be no JSON, and `run` has not seen it."""
    runtime = load_stateful(
        """
import threading

def init(): ...

def run(raw_data, state):
    state["lock"] = threading.Lock()
    return raw_data
"""
    )
    text = ScriptRequest(b"id", b"hello", 0, None).pack()
    first, second, _ = words(7)[0].tolist()
    assert runtime.states.admit((first, second), start=True) is None
    statuses = [
        ScriptAnswer.unpack(runtime.run([[text], words(7, flags)])[0][0]).status
        for flags in (SEQUENCE_START, 0)
    ]
    assert statuses == [200, 500]
    assert "the state of the sequence holds what cannot be copied" in caplog.text


NEVER_COPIED = """
import threading
import stoker

begun = threading.Event()

class Endless:
    def __deepcopy__(self, memo):
        begun.set()
        while True:
            pass

def init(): ...
"""


@pytest.mark.parametrize("batched", [False, True], ids=["requests", "rows"])
def test_a_copy_of_a_state_takes_its_time_from_its_request(
    load_stateful: Load, watched: Watched, *, batched: bool
) -> None:
    """A copy that takes too long is interrupted, as `run` is; otherwise it would block the script."""
    run = (
        "@stoker.batched(shape=(), dtype='int64')\ndef run(data, states):\n"
        "    states[0]['endless'] = Endless()\n    return data"
        if batched
        else "def run(raw_data, state):\n    state['endless'] = Endless()\n    return 1"
    )
    runtime = load_stateful(NEVER_COPIED + run)
    begun = sys.modules["entry_module"].begun

    def interrupt() -> None:
        assert begun.wait(20)
        watched.interrupt_late_calls()

    first, second, _ = words(7)[0].tolist()
    assert runtime.states.admit((first, second), start=True) is None
    content = np.array([0]) if batched else [ScriptRequest(b"id", b"0", 0, None).pack()]
    runtime.run([content, words(7, SEQUENCE_START)])
    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        if batched:
            with pytest.raises(ScoringTimeout):
                runtime.run([content, words(7)])
        else:
            ((packed,),) = runtime.run([content, words(7)])
            assert json.loads(ScriptAnswer.unpack(packed).body)["code"] == "scoring_timeout"
        interrupted.result()


def test_coroutines_and_decorated_scripts_have_state(load_stateful: Load) -> None:
    """`run` is a coroutine, or has decorated members beside the headers of the request."""
    runtime = load_stateful(
        """
async def init(): ...

async def run(raw_data, state):
    state["n"] = state.get("n", 0) + 1
    return state["n"]
"""
    )
    assert [result(answer(runtime, 0, 7, flags)) for flags in (SEQUENCE_START, 0)] == [1, 2]
    runtime = load_stateful(
        """
from inference_schema.schema_decorators import input_schema
from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType

def init(): ...

@input_schema("number", StandardPythonParameterType(1))
def run(number, state, request_headers):
    state["sum"] = state.get("sum", 0) + number
    return [state["sum"], request_headers]
"""
    )
    assert runtime.signature.script.input_schema["example"] == {"number": 1, "request_headers": ""}
    head = RequestHead("POST", "/score", "", [("content-type", "application/json")], "")
    sums = [result(answer(runtime, {"number": 4}, 7, flags, head)) for flags in (SEQUENCE_START, 0)]
    assert sums == [[total, {"Content-Type": "application/json"}] for total in (4, 8)]


def test_state_of_a_generator_is_kept_after_its_last_piece(load_stateful: Load) -> None:
    """The state is kept after the last piece; a failure after some pieces leaves it unchanged."""
    runtime = load_stateful(
        """
def init(): ...

def run(raw_data, state):
    for number in range(2):
        state["n"] = state.get("n", 0) + 1
        yield state["n"]
    if raw_data == "13":
        raise ValueError("unlucky")
"""
    )
    assert result(answer(runtime, 0, 7, SEQUENCE_START)) == [1, 2]
    assert answer(runtime, 13, 7).status == 500
    assert result(answer(runtime, 0, 7)) == [3, 4]


def test_rows_of_a_batch_have_a_state_each(load_stateful: Load) -> None:
    """A decorated `run` gets a state per row; a failed batch changes none."""
    runtime = load_stateful(ADDS)
    assert isinstance(runtime, SequenceRowsScript)
    row_words = np.concatenate(
        [words(name, SEQUENCE_START) for name in (1, 2)] + [np.zeros((1, 3), np.int64)]
    )
    for first, second, _ in row_words[:2].tolist():
        assert runtime.states.admit((first, second), start=True) is None
    rows = np.array([[1, 1], [2, 2], [9, 9]], np.float32)
    assert np.asarray(runtime.run([rows, row_words])[0]).tolist() == rows.tolist()
    row_words[:, 2] = 0
    with pytest.raises(ValueError, match="unlucky"):
        runtime.run([np.array([[1, 1], [13, 13], [9, 9]], np.float32), row_words])
    again = runtime.fork().run([rows, row_words])[0]
    assert np.asarray(again).tolist() == [[2, 2], [4, 4], [9, 9]]
    assert runtime.states.counts.live == 2


def test_batch_may_replace_the_states_in_its_list(load_stateful: Load) -> None:
    """It fails if their number is not that of the rows."""
    runtime = load_stateful(
        """
import stoker

def init(): ...

@stoker.batched(shape=(), dtype="int64")
def run(data, states):
    if (data == 13).any():
        states.append({})
    states[0] = {"last": int(data[0]), "before": states[0].get("last")}
    return [states[0]["before"]] * len(data)
"""
    )
    first, second, _ = words(1)[0].tolist()
    assert runtime.states.admit((first, second), start=True) is None
    assert runtime.run([np.array([5]), words(1, SEQUENCE_START)]) == [[b"null"]]
    with pytest.raises(ValueError, match="has left 2 states for a batch of 1"):
        runtime.run([np.array([13]), words(1)])
    assert runtime.run([np.array([6]), words(1)]) == [[b"5"]]


def test_interrupted_run_does_not_change_the_state(load_stateful: Load, watched: Watched) -> None:
    """The answer is a timeout."""
    runtime = load_stateful(
        """
import threading

begun = threading.Event()

def init(): ...

def run(raw_data, state):
    state["n"] = state.get("n", 0) + 1
    if raw_data == "13":
        begun.set()
        while True:
            pass
    return state["n"]
"""
    )
    result(answer(runtime, 0, 7, SEQUENCE_START))
    begun = sys.modules["entry_module"].begun

    def interrupt() -> None:
        assert begun.wait(20)
        watched.interrupt_late_calls()

    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        assert json.loads(answer(runtime, 13, 7).body)["code"] == "scoring_timeout"
        interrupted.result()
    assert result(answer(runtime, 0, 7)) == 2


def test_rows_have_start_and_end_of_their_sequence(load_stateful: Load) -> None:
    """They are arrays of booleans; a row with a too long text does not change its state."""
    runtime = load_stateful(
        """
import stoker

def init(): ...

@stoker.batched(shape=(), dtype="int64")
def run(data, sequence_end, states, sequence_start):
    for state in states:
        state["n"] = state.get("n", 0) + 1
    return [
        "x" * (1 << 20) if number else [state["n"], bool(start), bool(end)]
        for number, state, start, end in zip(data, states, sequence_start, sequence_end)
    ]
"""
    )
    for name in (1, 2):
        first, second, _ = words(name)[0].tolist()
        assert runtime.states.admit((first, second), start=True) is None
    both = np.concatenate([words(1, SEQUENCE_START), words(2, SEQUENCE_START | SEQUENCE_END)])
    assert runtime.run([np.array([0, 0]), both]) == [[b"[1,true,false]", b"[1,true,true]"]]
    (text,) = runtime.run([np.array([1]), words(1)])[0]
    assert len(text) > 1 << 20
    assert runtime.run([np.array([0]), words(1)]) == [[b"[2,false,false]"]]


def test_several_instances_have_the_same_states(load_stateful: Load, tmp_path: Path) -> None:
    """The setting is `instances`; without it one request runs after the other, on a GPU too."""
    first = load_stateful(REMEMBERS, instances=2)
    deployment = Deployment(
        "m", 1, "script", tmp_path / "score.py", tmp_path, 8, MOST_BYTES, sequence=read_sequence({})
    )
    assert load(deployment, Device("cuda", 0, "a GPU")).instances == 1
    second = first.fork()
    result(answer(first, 1, 7, SEQUENCE_START))
    assert result(answer(second, 2, 7)) == [[1, 2], False, False]


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (
            "def run(raw_data):\n    return 1",
            r"no argument 'state', .* write run\(raw_data, state\), or leave",
        ),
        ("def run(state):\n    return 1", 'other than "state"'),
        (
            "import stoker\n@stoker.batched(shape=())\ndef run(data, state):\n    return data",
            r"no argument 'states', .* write run\(data, states\)",
        ),
        (
            "from inference_schema.schema_decorators import input_schema\n"
            "from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType\n"
            "@input_schema('state', StandardPythonParameterType(1))\n"
            "@input_schema('other', StandardPythonParameterType(1))\n"
            "def run(other, state):\n    return 1",
            "give that member another name",
        ),
    ],
)
def test_a_script_that_takes_no_state_is_refused(load_stateful: Load, run: str, complaint: str) -> None:
    """The message has the code to write."""
    with pytest.raises(LoadFailed, match=complaint):
        load_stateful(f"{run}\ndef init(): ...\n")


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        ("def run(raw_data, state):\n    return 1", r"'state'.* The setting sequence: \{\} gives it"),
        (
            "import stoker\n@stoker.batched(shape=())\ndef run(data, states):\n    return data",
            r"'states', .* give it the setting sequence: \{\}",
        ),
    ],
)
def test_script_with_a_state_argument_needs_the_setting(
    load_stateful: Load, run: str, complaint: str
) -> None:
    """The message has the setting; an argument with a default needs none."""
    with pytest.raises(LoadFailed, match=complaint):
        load_stateful(f"{run}\ndef init(): ...\n", stateless=True)
    for default in (
        "def run(raw_data, state=None):\n    return state",
        "import stoker\n@stoker.batched(shape=())\ndef run(data, states=None):\n    return data",
    ):
        assert not load_stateful(f"{default}\ndef init(): ...\n", stateless=True).signature.sequences
