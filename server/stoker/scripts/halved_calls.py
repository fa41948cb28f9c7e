"""Scores requests in one call, or in halves if that call fails, until the requests that fail are alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stoker.errors import ScoringTimeout
from stoker.system.logs import requests_in_log
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

logger = logging.getLogger(__name__)


def score_in_halves(
    requests: Sequence[ScriptRequest],
    together: Callable[[Sequence[ScriptRequest]], list[ScriptAnswer]],
    alone: Callable[[ScriptRequest], ScriptAnswer],
    refuse: Callable[[Exception, ScriptRequest], ScriptAnswer],
) -> list[ScriptAnswer]:
    """Score requests in one call, or, if that fails, in the calls of each half.

    Args:
        together: Scores several requests in one call; raises the exceptions of the call.
        alone: Scores one request; never raises.
        refuse: Returns the answer for a request whose call took too long.
    """
    if len(requests) == 1:
        return [alone(requests[0])]
    try:
        return together(requests)
    except ScoringTimeout as error:
        # The callers have no time left for another try.
        with requests_in_log(*(request.request_id for request in requests)):
            return [refuse(error, request) for request in requests]
    except Exception as error:  # noqa: BLE001  # the halves show which requests fail
        logger.debug("a call for %d requests failed: %r", len(requests), error)
    halves = requests[: len(requests) // 2], requests[len(requests) // 2 :]
    return [answer for half in halves for answer in score_in_halves(half, together, alone, refuse)]
