"""The end of an attempt, from the agent's report: observations for the run's state, with messages for its user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker_runs.records.states import (
    CancelRequested,
    FailureCode,
    Lost,
    Observation,
    Refused,
    RunFailure,
    ScriptEnded,
    TimeLimitExceeded,
)

_SIGNALS: Final = {"SIGSEGV": -11, "SIGKILL": -9, "SIGTERM": -15, "SIGINT": -2, "SIGABRT": -6, "SIGBUS": -7}


def observations(report: Mapping[str, Any], limit_s: float) -> list[Observation]:
    """Return the observations that follow from an agent's report.

    Args:
        report: The content of `exit.json`.
    """
    outcome = report.get("outcome")
    started_ms = report.get("started_ms") or None
    status = _status(report)
    if outcome == "lease_lost":
        return [
            Lost(RunFailure(FailureCode.NODE_LOST, "the node lost its contact, and ended the script itself"))
        ]
    if outcome == "stopped":
        return [CancelRequested(str(report.get("reason") or "")), ScriptEnded(status, None, started_ms)]
    if outcome == "timed_out":
        return [TimeLimitExceeded(limit_s), ScriptEnded(status, None, started_ms)]
    if outcome == "not_started":
        message = str(report.get("reason") or "the script could not be started")
        return [Refused(RunFailure(FailureCode.SCRIPT_FAILED, message))]
    if outcome == "signalled":
        return [ScriptEnded(status, _name_process(_killed(report), report), started_ms)]
    return [
        ScriptEnded(status, _name_process(_failed(report, status), report) if status else None, started_ms)
    ]


def _name_process(failure: RunFailure, report: Mapping[str, Any]) -> RunFailure:
    """Name the failed process in the message if the attempt has several."""
    if len(report.get("processes") or ()) < 2:
        return failure
    rank = report.get("rank")
    return RunFailure(failure.code, f"process {rank}: {failure.message}", failure.hint, failure.details)


def _status(report: Mapping[str, Any]) -> int:
    signal = report.get("signal")
    if signal:
        return _SIGNALS.get(str(signal), -1)
    status = report.get("exit_status")
    return status if isinstance(status, int) else 0


def _failed(report: Mapping[str, Any], status: int) -> RunFailure:
    details = _details(report)
    if report.get("out_of_memory"):
        return _out_of_memory(report)
    traceback = str(report.get("traceback") or "").strip()
    if traceback:
        message = traceback.splitlines()[-1]
        return RunFailure(FailureCode.SCRIPT_FAILED, message, _advice(message), details)
    lines = [str(line) for line in report.get("last_lines") or ()]
    last = f"; its last line: {lines[-1]}" if lines else ""
    return RunFailure(
        FailureCode.SCRIPT_FAILED,
        f"the script ended with exit status {status}{last}",
        "stoker runs logs RUN",
        details,
    )


def _advice(message: str) -> str:
    """Return advice about an exception, given its line in a traceback; empty if there is none."""
    # TensorFlow does not ask for it any more. With it missing, a script ends after its first epoch.
    if "TBNotInstalledError" in message or "No module named 'tensorboard" in message:
        return (
            "install tensorboard beside TensorFlow (pip install tensorboard), or name it in the file of "
            "--environment: mlflow.tensorflow.autolog needs it as TensorBoard's callback does; mlflow.keras.autolog "
            "works without"
        )
    return ""


def _killed(report: Mapping[str, Any]) -> RunFailure:
    if report.get("out_of_memory"):
        return _out_of_memory(report)
    signal = report.get("signal") or "a signal"
    return RunFailure(FailureCode.KILLED, f"the script was killed by {signal}", "", _details(report))


def _out_of_memory(report: Mapping[str, Any]) -> RunFailure:
    peak, limit = report.get("peak_bytes"), report.get("limit_bytes")
    sizes = "".join(
        f", {name} {value / 1e9:.2f} GB"
        for name, value in (("peak", peak), ("limit", limit))
        if isinstance(value, int)
    )
    return RunFailure(
        FailureCode.OUT_OF_MEMORY,
        f"the script ran out of memory{sizes}",
        "take smaller batches, or a target with more memory",
        _details(report),
    )


def _details(report: Mapping[str, Any]) -> dict[str, Any]:
    names = ("traceback", "signal", "rank", "peak_bytes", "limit_bytes", "last_lines")
    found = {name: report[name] for name in names if report.get(name) not in (None, [], "")}
    if "traceback" in found:
        # The last lines are those of the traceback.
        found.pop("last_lines", None)
    return found
