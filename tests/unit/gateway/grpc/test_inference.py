"""One infer request of gRPC: its memory and its end."""

from __future__ import annotations

from typing import Any, cast
from weakref import ref

import pytest

from stoker.errors import NotReady
from stoker.gateway.grpc.inference import Inference


class Scored:
    """A call under way, which knows its caller."""

    def __init__(self, inference: Inference) -> None:
        self.inference = inference

    def abandon(self) -> None:
        """Nothing is to be ended."""


class Scoring:
    """A service with a request in flight for any caller, which knows whether it still is."""

    last: ref[Scored]

    def score(self, inference: Inference, content: bytes) -> Scored:
        del content
        scored = Scored(inference)
        self.last = ref(scored)
        return scored


class InferenceOwner:
    """An owner that keeps all it is sent."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("refused", [False, True])
def test_answered_inference_is_freed_without_a_collection(refused: bool) -> None:
    """An answered or refused inference is freed at once: garbage collection may be far away."""
    inference, scoring = Inference(cast("Any", None), cast("Any", InferenceOwner()), None), Scoring()
    inference.start(scoring, b"")
    if refused:
        inference.refuse(NotReady("The device restarts."))
    else:
        inference(200, b"", b"")
    del inference
    assert scoring.last() is None
