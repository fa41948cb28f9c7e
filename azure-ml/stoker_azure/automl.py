"""Modules for scripts that AutoML has written: log and telemetry. Nothing is sent to Azure.

These are the modules `azureml.automl.core.shared.log_server` and `.logging_utilities`, `azureml.telemetry`, and
`azureml.train.automl`, which scripts import so that pickles find their classes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

__all__ = [
    "INSTRUMENTATION_KEY",
    "enable_telemetry",
    "log_traceback",
    "set_diagnostics_collection",
    "set_verbosity",
    "update_custom_dimensions",
]


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
    """Do nothing: nothing is sent to Azure."""


def log_traceback(
    exception: BaseException,
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger] | None,
    override_error_msg: str | None = None,
    is_critical: bool | None = True,
    tb: TracebackType | None = None,
) -> None:
    """Log an exception with its traceback.

    Args:
        logger: Where to; None for AutoML's own.
        override_error_msg: What to say instead of the exception's text.
        tb: Another traceback than that of the exception.
    """
    level = logging.CRITICAL if is_critical else logging.ERROR
    described = (type(exception), exception, tb or exception.__traceback__)
    text = str(exception) if override_error_msg is None else override_error_msg
    (logger or logging.getLogger("azureml.automl")).log(level, "%s", text, exc_info=described)


INSTRUMENTATION_KEY: Final = ""
"""Of no resource."""


def set_diagnostics_collection(send_diagnostics: bool = True, verbosity: Any = None) -> None:
    """Do nothing: diagnostics are not sent."""


def __getattr__(name: str) -> object:
    """Say what becomes of the names that only code for training has."""
    if name.startswith("AutoML"):
        raise ImportError(
            f"azureml.train.automl.{name} is not offered: train by a script of your own, 'stoker tune' searches its "
            "parameters; or install azureml-train-automl-client",
            name="azureml.train.automl",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
