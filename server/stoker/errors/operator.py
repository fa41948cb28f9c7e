"""Errors that the operator can mend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stoker.errors.base import StokerError

__all__ = [
    "BatchFailed",
    "ClusterError",
    "ClusterRefusal",
    "CorruptModel",
    "DeviceUnavailable",
    "EnvironmentUnusable",
    "FieldConflict",
    "InvalidSettings",
    "LoadFailed",
    "LoadTimeout",
    "ModelInUse",
    "OperatorError",
    "ParityFailed",
    "ReloadFailed",
    "RepositoryError",
    "RunFailed",
    "SubmissionRefused",
    "UnknownModel",
    "UnknownRun",
]


class OperatorError(StokerError):
    """The operator can mend it: settings, files, devices. The command line prints it and exits."""

    exit_code: ClassVar[int] = 2


class InvalidSettings(OperatorError):
    """A setting is unknown, has a bad value, or contradicts another."""

    code = "invalid_settings"


class RepositoryError(OperatorError):
    """The repository of registered models refuses the operation."""

    code = "repository_error"


class UnknownModel(RepositoryError):
    """No registered model has this name and version."""

    code = "unknown_model"

    @classmethod
    def deleted(cls, reference: str) -> UnknownModel:
        """Return the error of a version, `NAME:VERSION`, that was there a moment ago."""
        return cls(f"{reference} is not there any more: it was deleted")


class ModelInUse(RepositoryError):
    """The version is being served."""

    code = "model_in_use"


class CorruptModel(RepositoryError):
    """A registered file is missing or is not the one that was registered."""

    code = "corrupt_model"


class DeviceUnavailable(OperatorError):
    """A device was asked for that cannot be used; the message names the missing library or driver."""

    code = "device_unavailable"


class EnvironmentUnusable(OperatorError):
    """A model's environment file cannot be read, or its environment cannot be built."""

    code = "environment_unusable"


class LoadFailed(OperatorError):
    """A model or entry script could not be loaded."""

    code = "load_failed"
    exit_code = 3

    @classmethod
    def unreadable_sample(cls, error: OSError) -> LoadFailed:
        """Return the error of a sample input whose file cannot be read."""
        return cls(f"the sample input cannot be read: {error}")


class LoadTimeout(LoadFailed):
    """A model or entry script was not loaded within `load_timeout_s`: it hangs, or needs longer."""

    code = "load_timeout"


class ParityFailed(LoadFailed):
    """A version was not shown to answer as the one that it would take over from, and `parity` requires that."""

    code = "parity_failed"


class BatchFailed(OperatorError):
    """Rows of a batch that is scored without a server have no answer: the model fails on them."""

    code = "batch_failed"
    exit_code = 1


class ReloadFailed(OperatorError):
    """A server could not be replaced by a new one, and goes on."""

    code = "reload_failed"


class ClusterError(OperatorError):
    """A cluster cannot be asked, or has not become what was wanted."""

    code = "cluster_error"


class ClusterRefusal(ClusterError):
    """The API server of a cluster refuses.

    Attributes:
        http_status: Its status, for instance 403.
    """

    code = "cluster_refusal"

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class FieldConflict(ClusterRefusal):
    """Others have changed fields of an object that belong to what is applied.

    Attributes:
        fields: Who has changed each of them, as the API server says it, by its path.
    """

    code = "field_conflict"

    def __init__(self, message: str, http_status: int, fields: Mapping[str, str]) -> None:
        super().__init__(message, http_status)
        self.fields = fields


class UnknownRun(OperatorError):
    """No training run has this id, or several could be meant."""

    code = "unknown_run"


class SubmissionRefused(OperatorError):
    """A training run cannot be begun, continued or ended as it was asked; nothing was changed."""

    code = "submission_refused"


class RunFailed(OperatorError):
    """A training run that was waited for has failed or was cancelled; the message has its error."""

    code = "run_failed"
    exit_code = 1
