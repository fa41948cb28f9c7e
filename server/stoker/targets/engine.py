"""What an engine is: seven functions by which a runner has an attempt of a run done on some machine.

Engines differ in how files get to the machine, how the agent (`stoker_run`) is started there and how files come back.
They keep nothing in memory that matters: a runner may be killed at any moment, and the next one asks a new engine the
same things. So each function may be called again after it was cut off, and `start` starts an attempt once.
`tests/targets/conformance.py` is the suite that each engine passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from stoker.environments.asked import AskedEnvironment
from stoker.errors import OperatorError
from stoker.runs.failures import RunFailure
from stoker.runs.folder import RunFolder
from stoker.runs.record import RunRecord

__all__ = [
    "Building",
    "Engine",
    "EngineFailure",
    "Job",
    "Learning",
    "Presence",
    "Pruning",
    "Say",
    "Sight",
    "Unreachable",
]

Say = Callable[[str], None]


class EngineFailure(OperatorError):
    """A target could not do what it was asked; `failure` is what the run gets of it.

    Args:
        failure: The reason.
    """

    code = "target_unusable"

    def __init__(self, failure: RunFailure) -> None:
        hint = f"; {failure.hint}" if failure.hint else ""
        super().__init__(f"{failure.message}{hint}")
        self.failure = failure


class Unreachable(EngineFailure):
    """The machine does not answer; it may do so later."""


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt of a run, as an engine needs to know it.

    Attributes:
        folder: The run's folder on this machine; `pull` brings everything there.
        record: What was asked.
        attempt: Which attempt it is.
        snapshots_dir: Where the snapshots of this workspace are.
        gpus: Names of the GPUs that it holds, for CUDA_VISIBLE_DEVICES; None leaves all as they are.
        resume_from: The folder on this machine from which it is to go on, or None.
    """

    folder: RunFolder
    record: RunRecord
    attempt: int
    snapshots_dir: Path
    gpus: tuple[str, ...] | None = None
    resume_from: Path | None = None

    @property
    def place(self) -> Path:
        """The attempt's folder on this machine."""
        return self.folder.attempt(self.attempt)


class Presence(Enum):
    """How an attempt is on its machine."""

    ABSENT = auto()
    """It was never started."""
    PENDING = auto()
    """It was started, and a node for it has yet to come."""
    ALIVE = auto()
    """Its agent is there."""
    ENDED = auto()
    """It has ended, and says how."""
    GONE = auto()
    """It was started, and nothing of it is there any more, though it has not said how it ended."""
    UNREACHABLE = auto()
    """Nothing is known: the machine does not answer."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What `observe` has seen.

    Attributes:
        presence: How the attempt is.
        reason: What it waits for, or why nothing is known, or what its agent complains of; empty for nothing.
        started_ms: When the script began by the machine's clock; None while it has not.
        exit: The content of `exit.json`, where it has ended.
    """

    presence: Presence
    reason: str = ""
    started_ms: int | None = None
    exit: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """One kind of machine. All functions may block; none is called from two threads at once."""

    def check(self) -> Sequence[str]:
        """Look whether the target can be used; returns what it has, a line each.

        Raises:
            EngineFailure: It cannot be used; the failure says why, and what to do.
        """
        ...

    def prepare(self, job: Job, say: Say) -> None:
        """Bring environment and files to the machine, `start.json` last.

        Args:
            job: The attempt.
            say: Is told in a line what takes time.

        Raises:
            EngineFailure: They cannot be had.
        """
        ...

    def start(self, job: Job) -> None:
        """Start the agent of a prepared attempt; nothing happens where it was started before.

        Raises:
            EngineFailure: It cannot be started.
        """
        ...

    def observe(self, job: Job) -> Sight:
        """See how the attempt is; changes nothing but its lease, which is renewed."""
        ...

    def pull(self, job: Job, *, final: bool) -> None:
        """Bring what is new of logs, lines and files to the attempt's folder on this machine.

        Args:
            job: The attempt.
            final: Whether nothing of it runs any more: then all, and `outputs/` and `logs/` to the run's folder.

        Raises:
            EngineFailure: They do not come; a later call goes on where this one stopped.
        """
        ...

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Have the script ended: SIGTERM to all its processes, after the grace SIGKILL. Does not wait.

        Raises:
            EngineFailure: The machine cannot be told; a later call tells it again.
        """
        ...

    def clean(self, job: Job) -> None:
        """Leave nothing of an attempt that has ended on the machine: no process, no working directory.

        Raises:
            EngineFailure: The machine cannot be told.
        """
        ...


@runtime_checkable
class Learning(Protocol):
    """An engine of a machine that can be asked what the file of its target had better say."""

    def learned(self) -> Mapping[str, Any]:
        """Settings that the file has not, or has less exactly.

        Raises:
            EngineFailure: It cannot be asked.
        """
        ...


@runtime_checkable
class Building(Protocol):
    """An engine that has environments built before there is a run for them."""

    def build(self, asked: AskedEnvironment, folder: Path, say: Say) -> None:
        """Have an environment on the machine, where runs that ask for the same find it.

        Args:
            asked: What is asked for.
            folder: Has the file that says it; what there is, and what the installer said, is written there.
            say: Is told in a line what takes time.

        Raises:
            EngineFailure: The machine cannot be used.
            EnvironmentUnusable: It cannot be had.
        """
        ...


@runtime_checkable
class Pruning(Protocol):
    """An engine whose machine keeps environments that nobody but its runs uses."""

    def prune(self, unused_s: float, *, remove: bool) -> Sequence[tuple[str, float, int]]:
        """Remove the environments that no run was given for a time, and in which no process is.

        Args:
            unused_s: The time.
            remove: Whether they are removed, or only told of.

        Returns:
            Of each its name, the seconds since it was last used, and the bytes that it takes.

        Raises:
            EngineFailure: The machine cannot be used.
        """
        ...
