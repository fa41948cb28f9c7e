"""Scores samples at load, and compares the answers of batched requests with their answers alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stoker.scripts.answer_differences import answer_difference
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.result_parts import Unsplittable
from stoker.scripts.script_sample import Sample
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

UNCHECKED: Final = "asked for, unchecked"
"""The first words of the reason for a batching that the operator vouches for."""
_SHOWN: Final = 200


class Disproved(Exception):
    """Requests to this script cannot be run together; the message is the reason."""


def steady_answer(calls: ScriptCalls, sample: Sample) -> ScriptAnswer:
    """Score a sample twice, and return the first answer."""
    request = sample.request(with_head=calls.wants_head)
    try:
        first, second = score_once(calls, request), score_once(calls, request)
    except Exception as error:
        raise Disproved(f"run() fails for {sample.source}: {reason_of(error)}") from error
    if first.status != 200:
        raise Disproved(f"run() answers {sample.source} with status {first.status}")
    differs = answer_difference(first, second)
    if differs is not None:
        raise Disproved(f"two equal requests got different answers: {differs}")
    return first


def score_once(calls: ScriptCalls, request: ScriptRequest) -> ScriptAnswer:
    """Score one request; the log gets no failures."""
    with requests_in_log(SELF_CHECK):
        return calls.encode(calls.invoke(calls.arguments(request)), 0)


def compare_answers(alone: Iterable[ScriptAnswer], batched: Iterable[ScriptAnswer], request: str) -> None:
    """Raise Disproved, which names the kind of `request`, if callers could tell batched answers from those alone."""
    for mine, theirs in zip(alone, batched, strict=True):
        differs = answer_difference(mine, theirs)
        if differs is not None:
            raise Disproved(f"{request} gets another answer: {differs}")


def reason_of(error: BaseException) -> str:
    """Return the message of an exception in one short line."""
    text = str(error) if isinstance(error, Unsplittable) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
