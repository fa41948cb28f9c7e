"""Scripts whose `run` answers several requests in one call, in tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from stoker.deployment import Deployment
from stoker.scripts.request_batches import BatchRun
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest


class Run(BatchRun):
    """Answers the numbers of all requests by a function of them."""

    def __init__(self, compute: Callable[[list[int]], Sequence[Any]], examples: Sequence[int] = ()) -> None:
        self.compute, self.numbers = compute, examples
        self.calls: list[list[int]] = []

    def __call__(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        numbers = [int(request.body) for request in requests]
        self.calls.append(numbers)
        return [ScriptAnswer(json.dumps(answer).encode()) for answer in self.compute(numbers)]

    def examples(self, deployment: Deployment, count: int) -> list[ScriptRequest]:
        return [request_of(number) for number in self.numbers[:count]]

    def refusal(self, error: Exception) -> ScriptAnswer | None:
        return ScriptAnswer(b"own", 418) if isinstance(error, ZeroDivisionError) else None


def request_of(number: int) -> ScriptRequest:
    return ScriptRequest(b"7", str(number).encode())


def doubled(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


def fails_for(*bad: int, error: type[Exception] = ValueError) -> Callable[[list[int]], list[int]]:
    def compute(numbers: list[int]) -> list[int]:
        if set(bad) & set(numbers):
            raise error("bad")
        return doubled(numbers)

    return compute
