"""Answers to requests that failed; errors of the script go to the log with an id that the caller gets."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Final

from stoker.errors import (
    ModelFailed,
    RequestError,
    ScoringTimeout,
    StokerError,
)
from stoker.system.logs import frames_of_script
from stoker.wire.script_requests import ScriptAnswer

logger = logging.getLogger(__name__)


_FIRST_FAILED: Final = 500


def refusal_of(error: BaseException) -> ScriptAnswer:
    """Return the answer for a request that failed; errors of the script go to the log."""
    if isinstance(error, RequestError):
        return error_answer(error)
    error_id = log_failure("run() raised", error)
    answered = error if isinstance(error, ScoringTimeout) else ModelFailed(error_id=error_id)
    return error_answer(answered, failed=True, error_id=error_id)


def refusal_with(error: Exception, message: str, status: int) -> ScriptAnswer:
    """Return the answer for a request that failed, with a message and a status that the script has chosen."""
    failed = status >= _FIRST_FAILED
    content = {"message": message, "code": ModelFailed.code}
    if failed:
        content["error_id"] = log_failure("run() raised", error)
    return ScriptAnswer(json.dumps(content).encode(), status=status, failed=failed)


def log_failure(event: str, error: BaseException) -> str:
    """Log an error of the script, and return the id under which it is logged."""
    error_id = f"{secrets.randbits(63):016x}"
    # Without a frame of the script, the server raised it while it handled the result.
    frames = frames_of_script(error) or error.__traceback__
    logger.error("error id %s: %s", error_id, event, exc_info=(type(error), error, frames))
    return error_id


def error_answer(error: StokerError, *, failed: bool = False, error_id: str = "") -> ScriptAnswer:
    """Return an error as the answer to a request."""
    content = {"message": str(error), "code": error.code}
    if error_id:
        content["error_id"] = error_id
    return ScriptAnswer(json.dumps(content).encode(), status=error.status, failed=failed)
