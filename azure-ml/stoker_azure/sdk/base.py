"""Parts of all classes of the SDK: labels, printing, errors, and the workspace."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.errors import StokerError
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker_azure.exceptions import AzureMLException, WorkspaceException

_SECRET: Final = re.compile(r"password|passphrase|secret|token|(?:^|_)key$")
_NAME: Final = "local"
_NO_SUBSCRIPTION: Final = "00000000-0000-0000-0000-000000000000"

Filter = Mapping[str, Any] | Iterable[str | Sequence[str]]
"""Labels to search for: `KEY`, `[KEY, VALUE]`, several of both, or a mapping."""


def text_labels(labels: Mapping[str, Any] | None) -> dict[str, str]:
    """Return labels as texts, as Azure keeps them."""
    return {str(name): str(value) for name, value in (labels or {}).items()}


def has_labels(labels: Mapping[str, str], wanted: Filter | None) -> bool:
    """Whether an object with these labels has all that are wanted."""
    items: Iterable[Any] = wanted.items() if isinstance(wanted, Mapping) else wanted or ()
    for item in items:
        key, *value = [item] if isinstance(item, str) else item
        if key not in labels or (value and labels[key] != str(value[0])):
            return False
    return True


class Printable:
    """Prints as `Class(attribute=value, …)`: attributes that are set, and no secrets."""

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}"
            for name, value in self._printed().items()
            if value is not None and not _SECRET.search(name)
        )
        return f"{type(self).__name__}({shown})"

    def _printed(self) -> Mapping[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


@contextlib.contextmanager
def raised_as(exception: type[AzureMLException]) -> Iterator[None]:
    """Raise what Stoker raises in the body as this exception, with the same message."""
    try:
        yield
    except StokerError as error:
        # The message is whole: a traceback of Stoker's own code above it would hide the user's line.
        raise exception(str(error)) from None


def none_in_workspace(code: str, kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error for a name that the workspace does not have.

    Args:
        code: Azure's name of the failure.
        kind: The kind of thing, such as `service`.
    """
    return f"{code}: there is no {kind} {name!r} in the workspace; there are: {', '.join(known) or 'none'}"


class BaseWorkspace:
    """The names that a workspace has on Azure, and the workspace of this machine that stands for it.

    Models, runs and all else that a workspace has know this class; `Workspace`, which lists them, extends it.

    Attributes:
        name: Its name on Azure; `local` if no `config.json` says one.
        subscription_id: The subscription on Azure; zeros if none is said.
        resource_group: The resource group on Azure; `local` if none is said.
        location: The region on Azure, else `local`.

    Raises:
        WorkspaceException: The local workspace cannot be used.
    """

    def __init__(
        self,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        workspace_name: str = _NAME,
        auth: Any = None,
        *,
        sku: str | None = None,
        location: str | None = None,
        tags: dict[str, str] | None = None,
        project: Path | None = None,
    ) -> None:
        del auth, sku
        with raised_as(WorkspaceException):
            self.local = LocalWorkspace.find(project=project)
        self.name = workspace_name
        self.subscription_id = subscription_id or _NO_SUBSCRIPTION
        self.resource_group = resource_group or _NAME
        self.location = location or _NAME
        self.tags = dict(tags or {})

    def __repr__(self) -> str:
        return f"Workspace(name={self.name!r}, local={str(self.local.root)!r})"
