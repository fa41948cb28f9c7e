"""Scripts whose `run` answers several whole requests in one call.

Contract of `RequestBatches.answers`:

- Each request gets the answer that it would get alone: a call that raises is made again in halves, at last for each
  request alone, so only a request that fails alone fails.
- `run` may therefore see the same request several times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from stoker.deployment import Deployment
from stoker.errors import RequestError
from stoker.scripts.call_watchdog import Watchdog, call_contained
from stoker.scripts.halved_calls import score_in_halves
from stoker.scripts.refusals import refusal_of
from stoker.system.logs import requests_in_log
from stoker.system.wording import format_count
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest


class BatchRun(ABC):
    """The `run` of a script that answers several requests in one call."""

    @abstractmethod
    def __call__(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Answer requests, each with its head, in one call of the model.

        Raises:
            Exception: The call failed. Malformed requests do not make it fail: their answers are errors.
        """

    @abstractmethod
    def examples(self, deployment: Deployment, count: int) -> list[ScriptRequest]:
        """Return up to `count` different requests that the script is likely to answer."""

    def refusal(self, error: Exception) -> ScriptAnswer | None:
        """Return the answer for a request that failed alone; None for the answer of the server."""
        del error
        return None


class RequestBatches:
    """Calls a script once for several requests."""

    def __init__(self, run: BatchRun, watchdog: Watchdog | None = None) -> None:
        """Wrap a `run`, whose calls a watchdog ends if they take too long."""
        self._run = run
        self._watchdog = watchdog

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests together. Never raises exceptions of the script."""
        return score_in_halves(requests, self.score_together, self.score_alone, self._refusal)

    def score_together(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests in one call.

        Raises:
            Exception: The call raised it.
        """

        def call() -> list[ScriptAnswer]:
            answers = self._run(requests)
            if len(answers) != len(requests):
                given, wanted = format_count(len(answers), "answer"), format_count(len(requests), "request")
                raise ValueError(f"run() returned {given} for {wanted}")
            return answers

        with requests_in_log(*(request.request_id for request in requests)):
            return call_contained(call, self._watchdog)

    def score_alone(self, request: ScriptRequest) -> ScriptAnswer:
        """Score one request; never raises."""
        try:
            (answer,) = self.score_together([request])
        except Exception as error:  # noqa: BLE001  # told to the caller
            with requests_in_log(request.request_id):
                return self._refusal(error, request)
        return answer

    def _refusal(self, error: Exception, request: ScriptRequest) -> ScriptAnswer:
        del request
        own = None if isinstance(error, RequestError) else self._run.refusal(error)
        return refusal_of(error) if own is None else own
