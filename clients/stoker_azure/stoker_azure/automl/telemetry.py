"""`azureml.telemetry`: what would be sent to Azure. Nothing is."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["INSTRUMENTATION_KEY", "set_diagnostics_collection"]

INSTRUMENTATION_KEY: Final = ""
"""Of no resource."""


def set_diagnostics_collection(send_diagnostics: bool = True, verbosity: Any = None) -> None:
    """Do nothing: diagnostics are not sent.

    Args:
        send_diagnostics: Not used.
        verbosity: Not used.
    """
