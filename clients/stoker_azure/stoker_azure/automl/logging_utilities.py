"""`azureml.automl.core.shared.logging_utilities`: how scripts that AutoML has written log an exception."""

from __future__ import annotations

import logging
from types import TracebackType

__all__ = ["log_traceback"]


def log_traceback(
    exception: BaseException,
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger] | None,
    override_error_msg: str | None = None,
    is_critical: bool | None = True,
    tb: TracebackType | None = None,
) -> None:
    """Log an exception with its traceback.

    Args:
        exception: The exception.
        logger: Where to; None for AutoML's own.
        override_error_msg: What to say instead of the exception's text.
        is_critical: Whether its level is critical, else error.
        tb: Another traceback than that of the exception.
    """
    level = logging.CRITICAL if is_critical else logging.ERROR
    described = (type(exception), exception, tb or exception.__traceback__)
    text = str(exception) if override_error_msg is None else override_error_msg
    (logger or logging.getLogger("azureml.automl")).log(level, "%s", text, exc_info=described)
