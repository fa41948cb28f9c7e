"""Errors of the run API, under the names by which scripts catch them (`azureml.exceptions`)."""

from typing import Optional


class AzureMLException(Exception):
    """Base of what scripts catch."""

    def __init__(self, exception_message: str, inner_exception: Optional[BaseException] = None) -> None:
        super().__init__(exception_message)
        self.message = exception_message
        self.inner_exception = inner_exception


class UserErrorException(AzureMLException):
    """An argument is not what it has to be."""


class RunEnvironmentException(AzureMLException):
    """There is no run, and the script asked for one."""


class NotOffered(AzureMLException, NotImplementedError):
    """Azure offers this to scripts, Stoker does not; the message says what to do instead."""
