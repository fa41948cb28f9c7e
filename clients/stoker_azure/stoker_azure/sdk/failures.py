"""Stoker's errors as the exceptions that code written for Azure's SDK catches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from stoker.errors import StokerError
from stoker_azure.exceptions import AzureMLException

__all__ = ["none_in_workspace", "raised_as"]


@contextlib.contextmanager
def raised_as(exception: type[AzureMLException]) -> Iterator[None]:
    """Raise what Stoker raises in the body as this exception, with the same message."""
    try:
        yield
    except StokerError as error:
        # The message is whole: a traceback of Stoker's own code above it would hide the user's line.
        raise exception(str(error)) from None


def none_in_workspace(code: str, what: str, name: str, known: Iterable[str]) -> str:
    """What is said where the workspace has none of a name.

    Args:
        code: Azure's name of the failure.
        what: What was looked for, such as `service`.
        name: The name.
        known: Names that there are.
    """
    return f"{code}: there is no {what} {name!r} in the workspace; there are: {', '.join(known) or 'none'}"
