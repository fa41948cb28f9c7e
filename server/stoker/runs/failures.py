"""Why a run failed, in the form that users, the SDK and the index read: code, message, hint, details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["FailureCode", "RunFailure"]


class FailureCode(StrEnum):
    """What scripts may match on: stable words, as Azure writes them."""

    SCRIPT_FAILED = "ScriptFailed"
    """It raised, or ended with a status other than 0."""
    KILLED = "Killed"
    """A signal ended it, which nobody sent by way of the run."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The kernel ended it, for its group was at its limit of memory."""
    ENVIRONMENT_UNUSABLE = "EnvironmentUnusable"
    """Its packages or its Python cannot be had."""
    TARGET_UNUSABLE = "TargetUnusable"
    """The compute target cannot be used; the message says why."""
    DOCKER_UNAVAILABLE = "DockerUnavailable"
    """Neither docker nor podman is there, or none of them answers."""
    IMAGE_NOT_FOUND = "ImageNotFound"
    """The image of its container is not here, and cannot be pulled."""
    GPU_NOT_FOUND = "GpuNotFound"
    """It asks for GPUs, and its container sees fewer."""
    NODE_LOST = "NodeLost"
    """Its node was silent for longer than is waited."""
    INTERRUPTED = "Interrupted"
    """Its processes are gone without an exit status: the machine was restarted, or the agent was killed."""
    TIMED_OUT = "TimedOut"
    """It took longer than it was allowed."""
    INTERNAL = "InternalError"
    """The runner itself failed; the log of the runner has more."""


@dataclass(frozen=True, slots=True)
class RunFailure:
    """One reason.

    Attributes:
        code: One of `FailureCode`; engines of later may have further ones.
        message: What happened, in a sentence or a traceback's last line.
        hint: What to do about it; empty where there is nothing to say.
        details: What else is known: the traceback, peak and limit of memory, the signal.
    """

    code: str
    message: str
    hint: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `state.json` has as `error`."""
        return {
            "code": str(self.code),
            "message": self.message,
            "hint": self.hint,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunFailure:
        """Read what `to_json` has written; what is missing is empty."""
        return cls(
            str(content.get("code", FailureCode.INTERNAL.value)),
            str(content.get("message", "")),
            str(content.get("hint", "")),
            dict(content.get("details") or {}),
        )
