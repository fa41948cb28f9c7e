"""`azureml.automl.core.shared.log_server`: AutoML's telemetry. Its messages go to the log of the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

__all__ = ["enable_telemetry", "set_verbosity", "update_custom_dimensions"]


def enable_telemetry(*_arguments: Any, **_keywords: Any) -> None:
    """Do nothing: nothing is sent to Azure."""


def set_verbosity(verbosity: str | int) -> None:
    """Log messages of `azureml` loggers from this level on.

    Args:
        verbosity: A level of Python's logging, or its name. Another name changes nothing, for generated scripts would
            go on without their logger.
    """
    if isinstance(verbosity, str):
        verbosity = logging.getLevelNamesMapping().get(verbosity.upper(), logging.NOTSET)
    if verbosity:
        logging.getLogger("azureml").setLevel(verbosity)


def update_custom_dimensions(custom_dimensions: Mapping[str, Any]) -> None:
    """Do nothing: nothing is sent to Azure.

    Args:
        custom_dimensions: Not used.
    """
