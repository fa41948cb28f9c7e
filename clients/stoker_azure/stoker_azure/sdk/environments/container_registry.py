"""`azureml.core.container_registry`: where an image would be fetched from."""

from __future__ import annotations

from stoker_azure.sdk.labels import Shown

__all__ = ["ContainerRegistry"]


class ContainerRegistry(Shown):
    """A registry of images. It has no effect, and is not kept: it can hold a password.

    Attributes:
        address: Its address.
        username: Who signs in.
        password: With what.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        self.username: str | None = None
        self.password: str | None = None
