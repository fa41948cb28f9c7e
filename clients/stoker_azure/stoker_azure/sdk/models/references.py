"""The models that are given for a service, as references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stoker_azure.exceptions import WebserviceException

__all__ = ["ids_of"]


class _Registered(Protocol):
    @property
    def id(self) -> str: ...


def ids_of(models: Sequence[_Registered]) -> list[str]:
    """`NAME:VERSION` of each model.

    Raises:
        WebserviceException: It is no list of models; often it is a single one, or names.
    """
    if isinstance(models, list | tuple) and all(
        isinstance(getattr(model, "id", None), str) for model in models
    ):
        return [model.id for model in models]
    raise WebserviceException(
        f"models must be a list such as [Model(workspace, NAME)], got {type(models).__name__}"
        + (f" of {type(models[0]).__name__}" if isinstance(models, list | tuple) else "")
    )
