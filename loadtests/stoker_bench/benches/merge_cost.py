"""What merging requests costs on Stoker's side, step by step, in microseconds a request.

The steps are called as the server calls them, in this process, without a server: what the envelope around a body
costs an entry script is among them, what the script does is not.
"""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import simdjson

from stoker.scripts.calls import ScriptCalls
from stoker.scripts.merging import MergedCalls, split
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest, merge, row_count

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MergeCost", "Step", "measure_merge_cost"]

REPEATS: Final = 7
CALLS: Final = 100
REQUEST_ID: Final = b"7c0c7a5e-0d3f-4f0e-9a52-0f6c5f1f3a10"


@dataclass(frozen=True)
class Step:
    """One step on the path of a request.

    Attributes:
        name: What is done.
        side: Which process does it.
        merging: Whether it is done for merging alone; the others every entry script's request takes.
        us: Microseconds a request.
    """

    name: str
    side: str
    merging: bool
    us: float


@dataclass(frozen=True)
class MergeCost:
    """The steps for requests of one size.

    Attributes:
        body_bytes: Size of each body.
        requests: Requests in a merged call.
        steps: What Stoker does.
    """

    body_bytes: int
    requests: int
    steps: tuple[Step, ...]

    @property
    def merging_us(self) -> float:
        """What merging adds."""
        return sum(step.us for step in self.steps if step.merging)

    @property
    def envelope_us(self) -> float:
        """What every request of an entry script costs besides."""
        return sum(step.us for step in self.steps if not step.merging)


def measure_merge_cost(body: bytes, requests: int) -> MergeCost:
    """Measure the steps for so many requests of one row.

    Args:
        body: `{"data": [row]}`.
        requests: Requests in a merged call.

    Raises:
        ValueError: The body cannot be merged with others.
    """
    parser = simdjson.Parser()
    if row_count(parser, body) != 1:
        raise ValueError("a body of other than one row cannot be merged here")
    request = ScriptRequest(REQUEST_ID, body, rows=1)
    packed, batch = request.pack(), [request] * requests
    calls = ScriptCalls(_run)
    merged = MergedCalls(calls, key="data", max_rows=requests)
    answer = ScriptAnswer(b"[7]", exec_ns=1)
    packed_answer, result, rows = answer.pack(), [7] * requests, [1] * requests
    bodies = [body] * requests
    steps = (
        Step("count the rows", "frontend", merging=True, us=_us(lambda: row_count(parser, body))),
        Step("pack the request", "frontend", merging=False, us=_us(request.pack)),
        Step("unpack the request", "device", merging=False, us=_us(lambda: ScriptRequest.unpack(packed))),
        Step(
            "find what may be merged",
            "device",
            merging=True,
            us=_us(lambda: list(merged.companies(batch)), requests),
        ),
        Step("merge the bodies", "device", merging=True, us=_us(lambda: merge(bodies), requests)),
        Step("split the result", "device", merging=True, us=_us(lambda: split(result, rows), requests)),
        Step("encode the answer", "device", merging=False, us=_us(lambda: calls.encode([7], 1))),
        Step("pack the answer", "device", merging=False, us=_us(answer.pack)),
        Step(
            "unpack the answer", "frontend", merging=False, us=_us(lambda: ScriptAnswer.unpack(packed_answer))
        ),
    )
    return MergeCost(len(body), requests, steps)


def _run(raw_data: str) -> None:
    """Stand for a script that is never called."""
    del raw_data


def _us(step: Callable[[], object], requests: int = 1) -> float:
    """Return microseconds a request, the best of several tries: what disturbs a try only makes it longer."""
    calls = max(1, CALLS // requests)
    step()
    return min(timeit.repeat(step, number=calls, repeat=REPEATS)) / calls / requests * 1e6
