"""Whether a script asked for whole requests. Light: most scripts do not, and need no Werkzeug."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

__all__ = ["raw_http_requested", "requesting_module"]

# Each real package has a module of this form, with a flag of its own.
_MODULES: Final = (
    "azureml_inference_server_http.api.aml_request",
    "azureml.contrib.services.aml_request",
    "stoker_azure.aml_request",
)


def raw_http_requested() -> bool:
    """Whether `rawhttp` has decorated anything in this process, in whichever module it was imported from."""
    return requesting_module() is not None


def requesting_module() -> ModuleType | None:
    """Return the module whose `rawhttp` has decorated something."""
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "_rawHttpRequested", False) is True:
            return module
    return None
