"""The states of a run with the reasons of failures, and the transitions between states.

NotStarted → Queued → Preparing → Provisioning → Starting → Running → Finalizing → Completed | Failed | Canceled
Besides, Running and NotResponding change into each other, and CancelRequested lies between any state with processes
and Finalizing. A run whose node or machine was lost returns to Queued while it has attempts left.

`next_state` is a pure function with all transitions; observations are what the runner has seen, never what it
expects. Terminal states never change by it. `resumed` implements the user's decision to start a further attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from stoker_runs.records.serialization import Record


class FailureCode(StrEnum):
    """Stable codes that scripts may match on, in Azure's spelling."""

    SCRIPT_FAILED = "ScriptFailed"
    """The script raised an exception, or exited with a status other than 0."""
    KILLED = "Killed"
    """A signal ended it that was not sent on behalf of the run."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The kernel killed it because its cgroup reached its memory limit."""
    ENVIRONMENT_UNUSABLE = "EnvironmentUnusable"
    """Its packages or its Python are not available."""
    TARGET_UNUSABLE = "TargetUnusable"
    """The compute target cannot be used; the message says why."""
    DOCKER_UNAVAILABLE = "DockerUnavailable"
    """Neither docker nor podman is installed, or none of them responds."""
    IMAGE_NOT_FOUND = "ImageNotFound"
    """The image of its container is not on the machine, and cannot be pulled."""
    GPU_NOT_FOUND = "GpuNotFound"
    """It requires GPUs, and its container sees fewer."""
    INPUT_CHANGED = "InputChanged"
    """Its data has changed since it was submitted, and was not on the machine yet."""
    OUTPUT_NOT_STORED = "OutputNotStored"
    """Its output could not be copied into a data store."""
    NODE_LOST = "NodeLost"
    """Its node sent no message for longer than the limit."""
    INTERRUPTED = "Interrupted"
    """Its processes ended without an exit status: the machine was restarted, or the agent was killed."""
    TIMED_OUT = "TimedOut"
    """It exceeded its time limit."""
    INTERNAL = "InternalError"
    """The runner itself failed; its log has details."""


class RunFailure(Record, frozen=True):
    """The reason of a failure: the `error` of `state.json`.

    Attributes:
        code: One of `FailureCode`; later versions may add further ones.
        message: What happened, in a sentence or a traceback's last line.
        hint: What to do about it; empty if there is no advice.
        details: Further facts: the traceback, peak and limit of memory, the signal.
    """

    code: str
    message: str
    hint: str = ""
    details: Mapping[str, Any] = {}


class Status(StrEnum):
    """The status of a run, in Azure's spelling (`Canceled` has one l)."""

    NOT_STARTED = "NotStarted"
    QUEUED = "Queued"
    PREPARING = "Preparing"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    RUNNING = "Running"
    NOT_RESPONDING = "NotResponding"
    CANCEL_REQUESTED = "CancelRequested"
    FINALIZING = "Finalizing"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELED})
_WITHOUT_PROCESSES: Final = frozenset({Status.NOT_STARTED, Status.QUEUED, Status.PREPARING})
_WITH_PROCESSES: Final = frozenset(
    {Status.PROVISIONING, Status.STARTING, Status.RUNNING, Status.NOT_RESPONDING}
)


class Waits(Struct, frozen=True):
    """There is no room yet. `reason` says what it waits for, and which runs hold that."""

    reason: str


class Granted(Struct, frozen=True):
    """It has been allocated its cores and GPUs; its environment and files come next."""


class Prepared(Struct, frozen=True):
    """Its environment and files are ready; the agent is being started, on a node that may have to be provisioned."""


class Provisioned(Struct, frozen=True):
    """The agent runs; the script is about to start."""


class Seen(Struct, frozen=True):
    """The script runs. `started_ms` is its start by the node's clock, if known."""

    started_ms: int | None = None


class Unseen(Struct, frozen=True):
    """There is no news of the script. `reason` says why."""

    reason: str


class ScriptEnded(Struct, frozen=True):
    """The script has ended with this exit status, negative for a signal, and the reason if it failed."""

    exit_status: int
    failure: RunFailure | None = None
    started_ms: int | None = None


class Lost(Struct, frozen=True):
    """The attempt has ended without an exit status, and none of its processes runs any more."""

    failure: RunFailure


class Refused(Struct, frozen=True):
    """It cannot run: its environment, its files or its target are not available."""

    failure: RunFailure


class CancelRequested(Struct, frozen=True):
    """The user has requested it to end."""

    reason: str = ""


class TimeLimitExceeded(Struct, frozen=True):
    """It has exceeded its time limit."""

    limit_s: float


class Collected(Struct, frozen=True):
    """All its files are in the run folder, and the node has been cleaned up."""


Observation = (
    Waits
    | Granted
    | Prepared
    | Provisioned
    | Seen
    | Unseen
    | ScriptEnded
    | Lost
    | Refused
    | CancelRequested
    | TimeLimitExceeded
    | Collected
)


class RunState(
    Record,
    frozen=True,
    rename={"since_ms": "since", "submitted_ms": "submitted", "started_ms": "started", "ended_ms": "ended"},
):
    """The content of `state.json`.

    Attributes:
        since_ms: When it changed to that status. Times are milliseconds since 1970.
        reason: What it waits for, why there is no news of it, or who ended it; else empty.
        exit_status: The script's exit status; negative for a signal.
        outcome: The final status once its files have been collected; only in Finalizing.
        ending: Why it was asked to end: `canceled` or `timed out`; empty if it was not.
    """

    status: Status = Status.NOT_STARTED
    since_ms: int = 0
    attempt: int = 1
    attempts: int = 1
    reason: str = ""
    submitted_ms: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_status: int | None = None
    error: RunFailure | None = None
    outcome: Status | None = None
    ending: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended."""
        return self.status in TERMINAL


def next_state(state: RunState, observation: Observation, now_ms: int) -> RunState:
    """Return the state after an observation; `state` itself if the observation changes nothing."""
    if state.is_terminal:
        return state
    if state.status is Status.FINALIZING:
        return _close(state, now_ms) if isinstance(observation, Collected) else state
    match observation:
        case ScriptEnded() | Lost() | Refused():
            return _after_end(state, observation, now_ms)
        case CancelRequested() | TimeLimitExceeded():
            return _after_stop_request(state, observation, now_ms)
        case Seen() | Unseen():
            return _after_contact(state, observation, now_ms)
        case Waits() | Granted() | Prepared() | Provisioned():
            return _before_script(state, observation, now_ms)
        case Collected():
            return state


def resumed(state: RunState, now_ms: int) -> RunState:
    """Return the state of a failed or cancelled run after its user has requested another attempt.

    Raises:
        ValueError: It has not ended, or is completed.
    """
    if state.status not in {Status.FAILED, Status.CANCELED}:
        raise ValueError(f"a run that is {state.status} cannot be resumed")
    return RunState(
        Status.QUEUED, now_ms, state.attempt + 1, state.attempt + 1, "resumed", state.submitted_ms
    )


def _before_script(
    state: RunState, observation: Waits | Granted | Prepared | Provisioned, now_ms: int
) -> RunState:
    """Before the script starts, states only advance in order."""
    match observation:
        case Waits(reason):
            if state.status not in {Status.NOT_STARTED, Status.QUEUED}:
                return state
            if state.status is Status.QUEUED:
                return state.replace(reason=reason)
            return _with_status(state, Status.QUEUED, now_ms, reason)
        case Granted():
            before, after = {Status.NOT_STARTED, Status.QUEUED}, Status.PREPARING
        case Prepared():
            before, after = {Status.PREPARING}, Status.PROVISIONING
        case Provisioned():
            before, after = {Status.PROVISIONING}, Status.STARTING
    return _with_status(state, after, now_ms) if state.status in before else state


def _after_contact(state: RunState, observation: Seen | Unseen, now_ms: int) -> RunState:
    if state.status not in _WITH_PROCESSES:
        return state
    if isinstance(observation, Seen):
        if state.status is Status.RUNNING:
            return state
        started_ms = state.started_ms or observation.started_ms or now_ms
        return _with_status(state, Status.RUNNING, now_ms).replace(started_ms=started_ms)
    if state.status is Status.RUNNING:
        return _with_status(state, Status.NOT_RESPONDING, now_ms, observation.reason)
    return state.replace(reason=observation.reason)


def _after_stop_request(
    state: RunState, observation: CancelRequested | TimeLimitExceeded, now_ms: int
) -> RunState:
    if state.ending:
        return state
    if isinstance(observation, CancelRequested):
        ending, reason, error = "canceled", observation.reason, None
    else:
        ending, reason = "timed out", f"took longer than {observation.limit_s:g} s"
        error = RunFailure(
            FailureCode.TIMED_OUT,
            f"the run took longer than the {observation.limit_s:g} s that it was allowed",
            "allow it more with --max-duration",
        )
    stopping = state.replace(ending=ending, error=error)
    if state.status in _WITHOUT_PROCESSES:
        return _finalizing(stopping, _outcome_of_ending(ending), now_ms, reason)
    return _with_status(stopping, Status.CANCEL_REQUESTED, now_ms, reason)


def _after_end(state: RunState, observation: ScriptEnded | Lost | Refused, now_ms: int) -> RunState:
    if isinstance(observation, ScriptEnded):
        # Before it was started nothing can end: the observation is from a file of an earlier attempt.
        if state.status in _WITHOUT_PROCESSES:
            return state
        started_ms = state.started_ms or observation.started_ms
        state = state.replace(exit_status=observation.exit_status, started_ms=started_ms)
    if state.ending:
        return _finalizing(state, _outcome_of_ending(state.ending), now_ms, state.reason)
    if isinstance(observation, Lost) and state.status in _WITHOUT_PROCESSES:
        return state
    if isinstance(observation, Lost) and state.attempt < state.attempts:
        again = f"attempt {state.attempt} has ended: {observation.failure.message}"
        return _with_status(state, Status.QUEUED, now_ms, again).replace(
            attempt=state.attempt + 1, started_ms=None
        )
    if observation.failure is None:
        return _finalizing(state, Status.COMPLETED, now_ms)
    return _finalizing(state.replace(error=observation.failure), Status.FAILED, now_ms)


def _outcome_of_ending(ending: str) -> Status:
    return Status.CANCELED if ending == "canceled" else Status.FAILED


def _finalizing(state: RunState, outcome: Status, now_ms: int, reason: str = "") -> RunState:
    return _with_status(state, Status.FINALIZING, now_ms, reason).replace(outcome=outcome)


def _close(state: RunState, now_ms: int) -> RunState:
    outcome = state.outcome or Status.FAILED
    return _with_status(state, outcome, now_ms, state.reason).replace(outcome=None, ended_ms=now_ms)


def _with_status(state: RunState, status: Status, now_ms: int, reason: str = "") -> RunState:
    return state.replace(status=status, since_ms=now_ms, reason=reason)
