"""The container of an attempt: written down before it is made, started once, seen, and removed.

attempts/N/container.json   which program, container and image, and the command line; what is needed to find it again
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.system.durable import replace_file
from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.targets.container_base import ContainerBase
from stoker_runs.targets.container_program import ContainerProgram, last_line
from stoker_runs.targets.engine import EngineFailure, Presence, Sight

__all__ = [
    "ContainerState",
    "keep_record",
    "read_record",
    "remove_container",
    "sight_of_container",
    "start_container",
    "state_of",
]

_RECORD: Final = "container.json"
_NONE: Final = ("no such container", "no such object", "no container with name or id")
_TAKEN: Final = ("already in use", "is in use by")
_STATE: Final = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
_NOT_YET: Final = frozenset({"created", "configured", "initialized"})
_OVER: Final = frozenset({"exited", "stopped", "dead", "removing"})


@dataclass(frozen=True, slots=True)
class ContainerState:
    """How a container is.

    Attributes:
        status: The word for it.
        exit_code: With which its first process has ended; 0 while it has not.
        out_of_memory: Whether it was killed for its memory.
    """

    status: str
    exit_code: int
    out_of_memory: bool

    @property
    def has_yet_to_start(self) -> bool:
        """Whether it was created, and not started."""
        return self.status in _NOT_YET

    @property
    def is_over(self) -> bool:
        """Whether its processes have ended."""
        return self.status in _OVER


def keep_record(place: Path, base: ContainerBase, name: str, command: Sequence[str]) -> None:
    """Write down how the container of an attempt is made.

    Args:
        place: The attempt's folder.
        base: Its program and image.
        name: What it is called.
        command: What the program is told.

    Raises:
        OSError: It cannot be written.
    """
    program, image = base.program, base.image
    record = {"program": program.path, "kind": program.kind, "container": name, "image": image.name}
    content = {**record, "image_id": image.id, "command": command}
    replace_file(place / _RECORD, json.dumps(content, indent=2).encode())


def read_record(place: Path) -> dict[str, Any] | None:
    """Return what `keep_record` has written; None where there is nothing."""
    try:
        record: dict[str, Any] = json.loads((place / _RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return record


def start_container(program: ContainerProgram, record: Mapping[str, Any], directory: Path) -> None:
    """Start a container: created if it does not exist, started if it was only created, otherwise left alone.

    Args:
        program: What starts it.
        record: Its name as `container`, and the `command` that makes it.
        directory: The current directory of the command.

    Raises:
        EngineFailure: It cannot be started.
    """
    started = program.call(*record["command"], directory=directory)
    said = last_line(started.stderr)
    if started.returncode != 0 and any(words in started.stderr.lower() for words in _TAKEN):
        state = state_of(program, record)
        if state is None or not state.has_yet_to_start:
            return
        started = program.call("start", record["container"], directory=directory)
        said = last_line(started.stderr)
    if started.returncode != 0:
        raise EngineFailure(
            RunFailure(FailureCode.TARGET_UNUSABLE, f"the container cannot be started: {said}")
        )


def state_of(program: ContainerProgram, record: Mapping[str, Any]) -> ContainerState | None:
    """How a container is; None where there is none of its name.

    Raises:
        EngineFailure: The program does not answer.
    """
    asked = program.call("container", "inspect", "--format", _STATE, record["container"])
    if asked.returncode == 0:
        status, code, out_of_memory = asked.stdout.split()
        return ContainerState(status, int(code), out_of_memory == "true")
    if _is_none(asked.stderr):
        return None
    message = f"{program.kind} does not answer: {last_line(asked.stderr)}"
    raise EngineFailure(RunFailure(FailureCode.DOCKER_UNAVAILABLE, message))


def sight_of_container(
    program: ContainerProgram, record: Mapping[str, Any], state: ContainerState, *, had_agent: bool
) -> Sight:
    """The state of an attempt whose agent has left no report.

    Args:
        program: What has its container.
        record: The container's name as `container`.
        state: How the container is.
        had_agent: Whether the agent had begun.

    Raises:
        EngineFailure: The program does not answer.
    """
    if state.has_yet_to_start:
        return Sight(Presence.ABSENT)
    if not state.is_over:
        return Sight(Presence.ALIVE, "its container is paused" if state.status == "paused" else "")
    if state.out_of_memory:
        report = {"outcome": "signalled", "signal": "SIGKILL", "exit_status": None, "out_of_memory": True}
        return Sight(Presence.ENDED, exit=report)
    if had_agent:
        return Sight(Presence.GONE)
    logs = program.call("logs", record["container"])
    ended = f"its container ended with status {state.exit_code}"
    said = last_line(logs.stderr) or last_line(logs.stdout) or ended
    return Sight(Presence.ENDED, exit={"outcome": "not_started", "reason": f"the agent cannot begin: {said}"})


def remove_container(program: ContainerProgram, record: Mapping[str, Any]) -> None:
    """Remove a container with all that runs in it; nothing happens where there is none.

    Raises:
        EngineFailure: It cannot be removed.
    """
    removed = program.call("rm", "--force", "--volumes", record["container"])
    if removed.returncode != 0 and not _is_none(removed.stderr):
        message = f"the container {record['container']} cannot be removed: {last_line(removed.stderr)}"
        raise EngineFailure(RunFailure(FailureCode.TARGET_UNUSABLE, message))


def _is_none(said: str) -> bool:
    return any(words in said.lower() for words in _NONE)
