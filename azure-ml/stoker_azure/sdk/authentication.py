"""`azureml.core.authentication`: ways to sign in to Azure. Nobody signs in to this machine."""

from __future__ import annotations

from typing import Any

from stoker_azure.sdk.base import Printable
from stoker_azure.sdk.unoffered import with_unoffered_names

__all__ = [
    "AbstractAuthentication",
    "ArmTokenAuthentication",
    "AzureCliAuthentication",
    "InteractiveLoginAuthentication",
    "MsiAuthentication",
    "ServicePrincipalAuthentication",
    "TokenAuthentication",
]


@with_unoffered_names
class AbstractAuthentication(Printable):
    """A way to sign in. Its arguments have no effect, and are not kept: they can be secrets."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass


class InteractiveLoginAuthentication(AbstractAuthentication):
    """In a browser."""


class AzureCliAuthentication(AbstractAuthentication):
    """As `az login` has done it."""


class ServicePrincipalAuthentication(AbstractAuthentication):
    """With a password of a service principal."""


class MsiAuthentication(AbstractAuthentication):
    """By the identity of an Azure machine."""


class ArmTokenAuthentication(AbstractAuthentication):
    """With a token of Azure Resource Manager."""


class TokenAuthentication(AbstractAuthentication):
    """With a token that a function gives."""
