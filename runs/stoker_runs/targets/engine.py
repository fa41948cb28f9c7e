"""The interface of engines: seven functions by which a runner executes an attempt of a run on some machine.

Engines differ in how files get to the machine, how the agent (`stoker_run`) is started there, and how files come
back. They keep no essential state in memory: a runner may be killed at any moment, and the next one calls a new
engine. So each function may be called again after it was interrupted, and `start` starts an attempt only once.
`tests/targets/conformance.py` is the test suite for engines.

The agent's README describes `start.json`, which the engine writes, and the files that the agent writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path, PurePath
from typing import Any, Final, Protocol, runtime_checkable

from msgspec import Struct, field

from stoker.errors import OperatorError
from stoker.system.durable import replace_file
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import RunRecord
from stoker_runs.records.states import FailureCode, RunFailure

Say = Callable[[str], None]


class EngineFailure(OperatorError):
    """A target could not do what it was asked; `failure` is recorded for the run."""

    code = "target_unusable"

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code: str = FailureCode.TARGET_UNUSABLE,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.failure = RunFailure(code, message, hint, details or {})


class Unreachable(EngineFailure):
    """The machine does not answer, but may do so later."""


class Job(Struct, frozen=True):
    """One attempt of a run, as engines need it.

    Attributes:
        folder: The run's folder on this machine, to which `pull` brings everything.
        gpus: The GPUs assigned to it, of all its nodes on one machine; None leaves them to the script.
        resume_from: The folder on this machine from which it continues, or None.
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
    """The state of an attempt on its machine."""

    ABSENT = auto()
    """It was never started."""
    PENDING = auto()
    """It was started, and waits for a node."""
    ALIVE = auto()
    """Its agent is running."""
    ENDED = auto()
    """It has ended, and has reported how."""
    GONE = auto()
    """It was started, and is gone without a report of its end."""
    UNREACHABLE = auto()
    """Unknown: the machine does not answer."""


class AttemptState(Struct, frozen=True):
    """The result of `observe`.

    Attributes:
        reason: What it waits for, why nothing is known, how the node was lost, or the agent's complaint;
            empty for none.
        started_ms: When the script started, by the machine's clock; None before.
        exit: The content of `exit.json`, if it has ended.
    """

    presence: Presence
    reason: str = ""
    started_ms: int | None = None
    exit: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """One kind of machine. All functions may block; none is called from two threads at once."""

    def check(self) -> Sequence[str]:
        """Check whether the target can be used; returns what it has, a line each.

        Raises:
            EngineFailure: It cannot be used; the failure says why, and what to do.
        """
        ...

    def prepare(self, job: Job, say: Say) -> None:
        """Bring environment and files to the machine; `start.json` is written last.

        Raises:
            EngineFailure: They cannot be provided.
        """
        ...

    def start(self, job: Job) -> None:
        """Start the agent of a prepared attempt, unless it was started before.

        Raises:
            EngineFailure: It cannot be started.
        """
        ...

    def observe(self, job: Job) -> AttemptState:
        """Return the state of the attempt; changes nothing, except that its lease is renewed."""
        ...

    def pull(self, job: Job, *, final: bool) -> None:
        """Copy new log lines and files to the attempt's folder on this machine.

        Args:
            final: Whether none of its processes is running any more: then everything is copied, with `outputs/` and
                `logs/` to the run's folder.

        Raises:
            EngineFailure: Copying failed; a later call continues where this one stopped.
        """
        ...

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Ask for the end of the script: SIGTERM to all its processes, SIGKILL after the grace period. Does not wait.

        Raises:
            EngineFailure: The machine cannot be told; to be called again later.
        """
        ...

    def clean(self, job: Job) -> None:
        """Remove everything of an ended attempt from the machine: its processes, its working directory.

        Raises:
            EngineFailure: The machine cannot be told.
        """
        ...


@runtime_checkable
class SettingsDiscovery(Protocol):
    """An engine that can suggest settings for its target's file by asking the machine."""

    def discover_settings(self) -> Mapping[str, Any]:
        """Return settings that the file lacks or states less precisely.

        Raises:
            EngineFailure: It cannot be asked.
        """
        ...


class NodeCounts(Struct, frozen=True):
    """How many nodes a cluster has, in each of Azure's states.

    Attributes:
        preparing: Requested or starting.
        unusable: Failed to start.
    """

    preparing: int = 0
    running: int = 0
    idle: int = 0
    unusable: int = 0

    @property
    def current(self) -> int:
        """The nodes that are there."""
        return self.running + self.idle

    def __str__(self) -> str:
        return f"{self.running} running, {self.idle} idle, {self.preparing} starting"


@runtime_checkable
class NodePool(Protocol):
    """An engine of a cluster whose nodes come and go."""

    def hold_nodes(self) -> None:
        """Have the cluster keep the target's smallest number of nodes, also without runs.

        Raises:
            EngineFailure: The cluster cannot be told.
        """
        ...

    def count_nodes(self) -> NodeCounts:
        """Return the number of nodes in each state.

        Raises:
            EngineFailure: The cluster cannot be asked.
        """
        ...


def attempt_state(seen: Mapping[str, Any]) -> AttemptState:
    """Return the state of an attempt from what `stoker_run.observing.observe` returned on its machine."""
    if seen["exit"] is not None:
        return AttemptState(
            Presence.ENDED, started_ms=_whole(seen["exit"].get("started_ms")), exit=seen["exit"]
        )
    if seen["alive"]:
        beat, agent = seen["heartbeat"] or {}, seen["agent"] or {}
        # The log of a process is made when it is.
        has_begun = any(name.startswith("log_") for name in seen["sizes"])
        began_ms = _whole(agent.get("started_ms")) if has_begun else None
        return AttemptState(Presence.ALIVE, str(beat.get("problem") or ""), began_ms)
    return AttemptState(Presence.ABSENT if seen["agent"] is None else Presence.GONE)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


_REFERENCE: Final = "$AZUREML_DATAREFERENCE_"


def start_content(
    job: Job,
    python: Sequence[str],
    directory: PurePath,
    *,
    inputs: Mapping[str, PurePath] | None = None,
    resume_from: PurePath | None = None,
    variables: Mapping[str, str] | None = None,
    lease_s: float | None = None,
    shared_directory: PurePath | None = None,
) -> dict[str, Any]:
    """Return the content of `start.json` for an attempt whose agent stands for all its nodes.

    Args:
        inputs: The paths of its data there, by name; None where they are those of this machine.
        variables: Environment variables besides those that were asked for.
        lease_s: How long the script may go on without a word from the runner; None is for ever.
        shared_directory: The folder there that runs of one experiment share.
    """
    definition = job.record.definition
    places = {name: str(path) for name, path in (inputs or definition.inputs).items()}
    written = {
        name: str(directory / output.place).replace("{run-id}", job.record.id)
        for name, output in definition.outputs.items()
    }
    arguments = [_with_places(argument, {**places, **written}) for argument in definition.arguments]
    if definition.resume_from and resume_from is not None:
        arguments += ["--resume-from", str(resume_from)]
    return {
        "version": 1,
        "run_id": job.record.id,
        "experiment": job.record.experiment,
        "attempt": job.attempt,
        "command": [*python, definition.script, *arguments],
        "directory": str(directory),
        "variables": {**(variables or {}), **definition.variables},
        "grace_s": definition.grace_s,
        "max_duration_s": definition.max_duration_s,
        "lease_s": lease_s,
        "inputs": places,
        "outputs": written,
        "relaxed": definition.environment.get("kind") == "relaxed",
        "resume_from": None if resume_from is None else str(resume_from),
        "nodes": definition.nodes,
        "nodes_here": definition.nodes,
        "processes": definition.processes_per_node,
        "communicator": definition.communicator,
        "parameter_servers": definition.parameter_servers,
        "gpus": None if job.gpus is None else list(job.gpus),
        "shared_directory": None if shared_directory is None else str(shared_directory),
    }


def _with_places(argument: str, places: Mapping[str, str]) -> str:
    """Insert the paths of data. A name may be a prefix of another one, so the longest is replaced first."""
    if _REFERENCE in argument:
        for name in sorted(places, key=len, reverse=True):
            argument = argument.replace(f"{_REFERENCE}{name}", places[name])
    return argument


def write_start(job: Job, content: Mapping[str, Any]) -> None:
    """Write `start.json` into the attempt's folder, for its owner alone: variables may hold secrets."""
    replace_file(job.place / "start.json", json.dumps(content, indent=2).encode(), mode=0o600)
