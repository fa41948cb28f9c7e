"""The definition of a run: the part of `run.json` that the user specifies by options, a file or keywords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["TARGET_VARIABLE", "Definition"]

TARGET_VARIABLE: Final = "AZUREML_COMPUTE_TARGET"
"""The variable with the name of the cluster for which this machine stands."""

_DEFAULT_GRACE_S: Final = 30.0
"""Time between asking a script to end and killing it."""
_DEFAULT_LOST_AFTER_S: Final = 300.0
"""A node counts as lost after this time without a message."""
_LONGEST_RUN_S: Final = 30 * 86_400.0
"""Default time limit of a run: the SDK's own default."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A script and how to run it.

    Attributes:
        script: The script, relative to its source folder, with `/`.
        arguments: Its command-line arguments.
        target: Name of the compute target.
        environment: As returned by `stoker.environments.requested.AskedEnvironment.to_json`.
        nodes: Number of machines; for this machine, number of process groups.
        processes_per_node: Number of processes on each node.
        gpus: GPUs allocated on each node; None is one if there are any.
        cores: Cores allocated on each node.
        max_duration_s: Time limit of the script.
        attempts: Number of attempts if its node is lost.
        grace_s: Time between asking it to end and killing it.
        lost_after_s: A node counts as lost after this time without a message.
        communicator: How its processes find each other: `none`, `tensorflow`, `pytorch`, `mpi`.
        variables: Environment variables of the script.
        inputs: Paths of its data by name, on the submitting machine; `$AZUREML_DATAREFERENCE_NAME` in an argument is
            replaced by the path on the machine that runs it.
        resume_from: Id of the run whose outputs are passed as `--resume-from PATH`; empty for none.
        container: Its container settings: `image`, `dockerfile` (a file in `environment/`), `shm_size`, `arguments`;
            missing ones are taken from the target. With any, it is in a container wherever it runs; with `optional`,
            which Azure's code and files imply, without one where there is no container program.
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
        """Total number of the script's processes."""
        return self.nodes * self.processes_per_node

    @property
    def target_name(self) -> str:
        """The target that its user has named: a cluster, where this machine stands for it."""
        return self.variables.get(TARGET_VARIABLE, self.target)

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
        """Inverse of `to_json`; keys of later versions are ignored."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        return cls(**{**known, "arguments": tuple(known.get("arguments", ()))})
