"""Reasons of failed runs, as shown to users, the SDK and the index: code, message, hint, details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["FailureCode", "RunFailure"]


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
    NODE_LOST = "NodeLost"
    """Its node sent no message for longer than the limit."""
    INTERRUPTED = "Interrupted"
    """Its processes ended without an exit status: the machine was restarted, or the agent was killed."""
    TIMED_OUT = "TimedOut"
    """It exceeded its time limit."""
    INTERNAL = "InternalError"
    """The runner itself failed; its log has details."""


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The reason of a failure.

    Attributes:
        code: One of `FailureCode`; later versions may add further ones.
        message: What happened, in a sentence or a traceback's last line.
        hint: What to do about it; empty if there is no advice.
        details: Further facts: the traceback, peak and limit of memory, the signal.
    """

    code: str
    message: str
    hint: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the `error` object of `state.json`."""
        return {
            "code": str(self.code),
            "message": self.message,
            "hint": self.hint,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunFailure:
        """Inverse of `to_json`; missing entries are empty."""
        return cls(
            str(content.get("code", FailureCode.INTERNAL.value)),
            str(content.get("message", "")),
            str(content.get("hint", "")),
            dict(content.get("details") or {}),
        )
