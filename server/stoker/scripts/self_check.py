"""Proof, on a sample input, that a script answers requests together as it answers each of them alone.

Whatever is compared has been run alone first. A script is steady if it gives equal answers to equal requests; rows
are made different from each other, so that a script which looks at other rows (a mean over the batch, a rank) gives
itself away; companies have several sizes and orders, so that a list that happens to be as long as the batch does too.

Alone and together are compared closely, not exactly: other shapes have other kernels. In companies of one shape the
answer to a row must be the same to the last character, whatever is beside it (`stoker.isolation.row_test` has the
reason), and the models that a script calls are read and tried in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stoker.isolation.row_test import Evidence
from stoker.scripts.agreement import answer_difference
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.handle_check import dynamically_quantised, read_handle, try_handle
from stoker.scripts.handles import HandleCall
from stoker.scripts.merging import Unsplittable
from stoker.system.request_log import SELF_CHECK, requests_in_log
from stoker.wire.envelope import RequestHead, ScriptAnswer, ScriptRequest

__all__ = [
    "Disproved",
    "Sample",
    "answer_of",
    "check_model",
    "check_models",
    "compare_answers",
    "reason_of",
    "steady_answer",
]

_SHOWN: Final = 200


class Disproved(Exception):
    """Requests to this script cannot be run together; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that the script is known to answer.

    Attributes:
        body: What it holds.
        content_type: Of which type that is.
        source: Where it comes from, for the operator.
    """

    body: bytes
    content_type: str
    source: str

    def request(self, body: bytes | None = None, rows: int = 0, *, with_head: bool = False) -> ScriptRequest:
        """Return a request like the sample, with its body or another one."""
        content = self.body if body is None else body
        headers = [("content-type", self.content_type), ("content-length", str(len(content)))]
        head = RequestHead("POST", "/score", "", headers, "127.0.0.1") if with_head else None
        return ScriptRequest(SELF_CHECK, content, rows, head)


def check_models(calls: ScriptCalls, sample: Sample, max_rows: int) -> None:
    """Look at what a script calls for a sample: no model of it may let rows see each other.

    Raises:
        Disproved: One does.
    """
    quantised = dynamically_quantised()
    if quantised is not None:
        raise Disproved(
            f"the script has loaded {quantised}, which takes the scale of its input from all rows"
        )
    gathered = GatheredCalls(calls, max_rows=max_rows, max_threads=1)
    try:
        _, seen = gathered.watch(sample.request(with_head=calls.wants_head))
    finally:
        gathered.close()
    for call in {call.kind: call for call in seen}.values():
        check_model(call, max_rows)


def check_model(call: HandleCall, max_rows: int) -> Evidence:
    """Raise Disproved if the rows of a call see each other, by its graph or beside companions."""
    reading = read_handle(call)
    if reading.finding == "mixed":
        raise Disproved(f"{call.name}: {reading.reason}")
    evidence = try_handle(call, max_rows, proven=reading.finding == "apart")
    if evidence.finding == "mixed":
        raise Disproved(f"{call.name}: {evidence.reason}")
    return evidence


def steady_answer(calls: ScriptCalls, sample: Sample) -> ScriptAnswer:
    """Score a sample twice, and return the first answer.

    Raises:
        Disproved: The script fails, or equal requests get different answers.
    """
    request = sample.request(with_head=calls.wants_head)
    try:
        first, second = answer_of(calls, request), answer_of(calls, request)
    except Exception as error:
        raise Disproved(f"run() fails for {sample.source}: {reason_of(error)}") from error
    if first.status != 200:
        raise Disproved(f"run() answers {sample.source} with status {first.status}")
    differs = answer_difference(first, second)
    if differs is not None:
        raise Disproved(f"two equal requests got different answers: {differs}")
    return first


def answer_of(calls: ScriptCalls, request: ScriptRequest) -> ScriptAnswer:
    """Score one request, without a word in the log if it fails."""
    with requests_in_log(SELF_CHECK):
        return calls.encode(calls.invoke(calls.arguments(request)), 0)


def compare_answers(alone: Iterable[ScriptAnswer], batched: Iterable[ScriptAnswer], what: str) -> None:
    """Raise Disproved, with `what` was answered together, where callers could tell it from what they get alone."""
    for mine, theirs in zip(alone, batched, strict=True):
        differs = answer_difference(mine, theirs)
        if differs is not None:
            raise Disproved(f"{what} gets another answer: {differs}")


def reason_of(error: BaseException) -> str:
    """Return what an exception says in one short line."""
    text = str(error) if isinstance(error, Unsplittable) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
