"""What the end of an attempt means for its run."""

from typing import Any

import pytest
from tests.puppet_engine import exited

from stoker.launch.verdict import verdict
from stoker.runs.failures import FailureCode
from stoker.runs.states import CancelAsked, Ended, Lost, Refused, TimeUp

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
    """A status, an exception, a signal and a lack of memory are told apart."""
    (observation,) = verdict(report, 60)
    assert isinstance(observation, Ended)
    assert observation.failure is not None
    assert observation.failure.code == code
    assert words in observation.failure.message


def test_other_ends_are_other_observations() -> None:
    """A good end, a stop, the end of the time, a lost lease, and a start that was none."""
    assert verdict(exited(0), 60) == [Ended(0, None, 5)]
    stopped = verdict(exited(0, outcome="stopped", reason="canceled", signal="SIGTERM"), 60)
    assert stopped == [CancelAsked("canceled"), Ended(-15, None, 5)]
    assert verdict(exited(0, outcome="timed_out"), 60)[0] == TimeUp(60)
    assert isinstance(verdict(exited(0, outcome="lease_lost"), 60)[0], Lost)
    (refused,) = verdict(exited(0, outcome="not_started", reason="there is no folder x"), 60)
    assert isinstance(refused, Refused)
    assert refused.failure.message == "there is no folder x"
