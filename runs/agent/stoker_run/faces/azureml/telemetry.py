"""`azureml.telemetry` in a run of Stoker: nothing is sent to Azure."""

from typing import Any

__all__ = ["set_diagnostics_collection"]


def set_diagnostics_collection(send_diagnostics: bool = True, verbosity: Any = None) -> None:
    """Do nothing: diagnostics are not sent."""
