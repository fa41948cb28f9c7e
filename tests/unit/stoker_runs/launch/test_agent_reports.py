"""Observations that follow from the report of an attempt's agent."""

from typing import Any

import pytest
from tests.puppet_engine import exited

from stoker_runs.launch.agent_reports import observations
from stoker_runs.records.states import (
    CancelRequested,
    FailureCode,
    Lost,
    Refused,
    ScriptEnded,
    TimeLimitExceeded,
)

KILLED = {"outcome": "signalled", "exit_status": None}


@pytest.mark.parametrize(
    ("report", "code", "words"),
    [
        (exited(3), FailureCode.SCRIPT_FAILED, "exit status 3"),
        (exited(1, last_lines=["usage: x"]), FailureCode.SCRIPT_FAILED, "its last line: usage: x"),
        (exited(1, traceback="T\nKeyError: 'x'"), FailureCode.SCRIPT_FAILED, "KeyError: 'x'"),
        ({**KILLED, "signal": "SIGSEGV"}, FailureCode.KILLED, "SIGSEGV"),
        (
            {**KILLED, "signal": "SIGKILL", "out_of_memory": True, "peak_bytes": None, "limit_bytes": 10**9},
            FailureCode.OUT_OF_MEMORY,
            "limit 1.00 GB",
        ),
        (
            exited(1, out_of_memory=True, traceback="T\nMemoryError"),
            FailureCode.OUT_OF_MEMORY,
            "out of memory",
        ),
    ],
)
def test_each_failure_has_its_code(report: dict[str, Any], code: str, words: str) -> None:
    """A status, an exception, a signal and a lack of memory have codes of their own."""
    (observation,) = observations(report, 60)
    assert isinstance(observation, ScriptEnded)
    assert observation.failure is not None
    assert observation.failure.code == code
    assert words in observation.failure.message


def test_a_failure_has_the_traceback_or_the_last_lines() -> None:
    """The last lines of the log are its own, so the failure has them only where there is none."""
    for traceback, names in (("T\nKeyError: 'x'", {"traceback"}), ("", {"last_lines"})):
        (observation,) = observations(exited(1, traceback=traceback, last_lines=["T", "KeyError: 'x'"]), 60)
        assert isinstance(observation, ScriptEnded)
        assert observation.failure is not None
        assert set(observation.failure.details) == names


@pytest.mark.parametrize(
    "last",
    [
        "tensorflow.python.summary.tb_summary.TBNotInstalledError: TensorBoard is not installed, missing "
        "implementation for tf.summary.scalar",
        "ModuleNotFoundError: No module named 'tensorboard.plugins'",
    ],
)
def test_a_missing_tensorboard_is_named_with_its_command(last: str) -> None:
    """It is MLflow that needs it, which the script does not show; other exceptions have no advice."""
    (observation,) = observations(exited(1, traceback=f"T\n{last}"), 60)
    assert isinstance(observation, ScriptEnded)
    assert observation.failure is not None
    assert observation.failure.message == last
    assert "pip install tensorboard" in observation.failure.hint
    assert "mlflow.tensorflow.autolog needs it" in observation.failure.hint
    (other,) = observations(exited(1, traceback="T\nKeyError: 'x'"), 60)
    assert isinstance(other, ScriptEnded)
    assert other.failure is not None
    assert other.failure.hint == ""


def test_other_ends_are_other_observations() -> None:
    """A good end, a stop, the end of the time, a lost lease, and a start that was none."""
    assert observations(exited(0), 60) == [ScriptEnded(0, None, 5)]
    stopped = observations(exited(0, outcome="stopped", reason="canceled", signal="SIGTERM"), 60)
    assert stopped == [CancelRequested("canceled"), ScriptEnded(-15, None, 5)]
    assert observations(exited(0, outcome="timed_out"), 60)[0] == TimeLimitExceeded(60)
    assert isinstance(observations(exited(0, outcome="lease_lost"), 60)[0], Lost)
    (refused,) = observations(exited(0, outcome="not_started", reason="there is no folder x"), 60)
    assert isinstance(refused, Refused)
    assert refused.failure.message == "there is no folder x"
