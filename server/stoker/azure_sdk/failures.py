"""Stoker's errors as the exceptions that code written for Azure's SDK catches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stoker.azure.exceptions import AzureMLException
from stoker.errors import StokerError

__all__ = ["raised_as"]


@contextlib.contextmanager
def raised_as(exception: type[AzureMLException]) -> Iterator[None]:
    """Raise what Stoker raises in the body as this exception, with the same message."""
    try:
        yield
    except StokerError as error:
        raise exception(str(error)) from error
