"""The exceptions of Azure's Python SDK that scripts catch.

AzureMLException
├─ WebserviceException            models and services
│  ├─ ModelNotFoundException
│  └─ NotOffered                  only Azure can do it; a NotImplementedError too
├─ ComputeTargetException
├─ WorkspaceException
├─ ProjectSystemException         not raised here; older code catches it for a workspace
├─ ModelPathNotFoundException     not raised here, nor those of training: RunConfigurationException, …
└─ UserErrorException             a file or an argument is wrong
   └─ AuthenticationException     not raised here: nobody signs in
"""

from __future__ import annotations

__all__ = [
    "ActivityCanceledException",
    "ActivityFailedException",
    "AuthenticationException",
    "AzureMLAggregatedException",
    "AzureMLException",
    "ComputeTargetException",
    "DatasetTimestampMissingError",
    "DiscoveryUrlNotFoundException",
    "ExperimentExecutionException",
    "ModelNotFoundException",
    "ModelPathNotFoundException",
    "NotOffered",
    "ParallelRunException",
    "ProjectSystemException",
    "RunConfigurationException",
    "RunEnvironmentException",
    "ServiceException",
    "SnapshotException",
    "TrainingException",
    "UserErrorException",
    "WebserviceException",
    "WorkspaceException",
    "WorkspacePrivateEndpointException",
]


class AzureMLException(Exception):
    """Base of the exceptions that code written for Azure's SDK may catch."""

    def __init__(self, exception_message: str, inner_exception: BaseException | None = None) -> None:
        super().__init__(exception_message)
        self.message = exception_message
        self.inner_exception = inner_exception


class WebserviceException(AzureMLException):
    """A model or a service cannot be used as requested."""

    def __init__(
        self,
        exception_message: str,
        status_code: int | None = None,
        inner_exception: BaseException | None = None,
    ) -> None:
        super().__init__(exception_message, inner_exception)
        self.status_code = status_code


class ModelNotFoundException(WebserviceException):
    """No files of this model are on this machine.

    A `WebserviceException` too: Azure's SDK raises that one where the version was given.
    """


class NotOffered(WebserviceException, NotImplementedError):
    """Stoker does not offer something of Azure; the message says what to do instead."""


class ComputeTargetException(AzureMLException):
    """There is no such compute target, or it is not allowed."""


class WorkspaceException(AzureMLException):
    """The workspace cannot be used."""


class ProjectSystemException(AzureMLException):
    """The workspace cannot be found, in older versions of Azure's SDK."""


class UserErrorException(AzureMLException):
    """A file or an argument is wrong."""


class AuthenticationException(UserErrorException):
    """Azure refuses to sign somebody in."""


class ActivityCanceledException(AzureMLException):
    """A step of training was canceled."""


class ActivityFailedException(AzureMLException):
    """A step of training failed."""


class AzureMLAggregatedException(AzureMLException):
    """Several exceptions."""


class DatasetTimestampMissingError(AzureMLException):
    """A table has no column of times."""


class ParallelRunException(AzureMLException):
    """A step of a pipeline failed."""


class ServiceException(AzureMLException):
    """A service of Azure answered with an error."""


class DiscoveryUrlNotFoundException(AzureMLException):
    """A workspace of Azure has no address."""


class ExperimentExecutionException(AzureMLException):
    """A run failed."""


class ModelPathNotFoundException(AzureMLException):
    """Older code catches it for files of a model."""


class RunConfigurationException(AzureMLException):
    """A run was described wrongly."""


class RunEnvironmentException(AzureMLException):
    """A run has no environment."""


class SnapshotException(AzureMLException):
    """A folder could not be sent to Azure."""


class TrainingException(AzureMLException):
    """Training failed."""


class WorkspacePrivateEndpointException(AzureMLException):
    """A private endpoint failed."""
