"""What was asked of a run: the part of `run.json` that a user has written, by options, a file or keywords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Definition"]

_DEFAULT_GRACE_S: Final = 30.0
"""How long a script that is told to end may take before it is killed."""
_DEFAULT_LOST_AFTER_S: Final = 300.0
"""How long nothing may be heard of a node before it counts as lost."""
_LONGEST_RUN_S: Final = 30 * 86_400.0
"""How long a run may take where nothing is said: the SDK's own default."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One script, and how it is to run.

    Attributes:
        script: The script, relative to its source folder, with `/`.
        arguments: What follows it on its command line.
        target: Name of the compute target.
        environment: What `stoker.environments.run_environment.Asked.to_json` gave.
        nodes: How many machines it runs on; on this one alone, how many groups of processes.
        processes_per_node: How many processes each of them has.
        gpus: GPUs of each node that it holds; None is one where there is any.
        cores: Cores of each node that it holds.
        max_duration_s: How long the script may take.
        attempts: How often it may begin when its node is lost.
        grace_s: How long it may take to end when it is told to.
        lost_after_s: How long nothing may be heard of its node.
        communicator: How its processes find each other: `none`, `tensorflow`, `pytorch`, `mpi`.
        variables: Environment variables of the script.
        inputs: Paths on the machine that submits of the data that it reads, by name; where an argument has
            `$AZUREML_DATAREFERENCE_NAME`, it is given the path on the machine that it runs on.
        resume_from: Id of the run whose outputs it is given, as `--resume-from PATH`; empty for none.
        container: What it says of its container: `image`, `dockerfile` (a file in `environment/`), `shm_size`,
            `arguments`; without a word of its own what the target says.
    """

    script: str
    arguments: tuple[str, ...] = ()
    target: str = "local"
    environment: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 1
    processes_per_node: int = 1
    gpus: int | None = None
    cores: int = 1
    max_duration_s: float = _LONGEST_RUN_S
    attempts: int = 1
    grace_s: float = _DEFAULT_GRACE_S
    lost_after_s: float = _DEFAULT_LOST_AFTER_S
    communicator: str = "none"
    variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    resume_from: str = ""
    container: Mapping[str, Any] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """All processes of the script together."""
        return self.nodes * self.processes_per_node

    def to_json(self) -> dict[str, Any]:
        """Return the `definition` of `run.json`."""
        return {
            "script": self.script,
            "arguments": list(self.arguments),
            "target": self.target,
            "environment": dict(self.environment),
            "nodes": self.nodes,
            "processes_per_node": self.processes_per_node,
            "gpus": self.gpus,
            "cores": self.cores,
            "max_duration_s": self.max_duration_s,
            "attempts": self.attempts,
            "grace_s": self.grace_s,
            "lost_after_s": self.lost_after_s,
            "communicator": self.communicator,
            "variables": dict(self.variables),
            "inputs": dict(self.inputs),
            "resume_from": self.resume_from,
            "container": dict(self.container),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Definition:
        """Read what `to_json` has written; keys of a later version are passed over."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        return cls(**{**known, "arguments": tuple(known.get("arguments", ()))})
