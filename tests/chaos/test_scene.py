"""Requests of an action to the server while other faults are about."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.chaos import scene as scenes
from tests.chaos.ledger import Ledger
from tests.chaos.scene import Scene
from tests.chaos.server import ChaosServer
from tests.http.raw_http import Answer

_UNLOADED = Answer(b"", 200, (), b"")
_NOT_LOADED = Answer(
    b"", 404, (), json.dumps({"error": "failed to unload 'extra': it is not loaded"}).encode()
)


@pytest.fixture
def scene_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    """A scene whose server gives these answers, one after the other, while other faults are about."""
    clock = iter(range(1000))
    monkeypatch.setattr(scenes, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))

    def build(*answers: Answer | Exception) -> Scene:
        left = list(answers)

        def administer(_: str) -> Answer:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        server = cast("ChaosServer", SimpleNamespace(administer=administer))
        return Scene(server, Random(1), 0.1, False, Ledger())

    return build


def test_unload_with_a_lost_answer_may_have_happened(scene_of: Callable[..., Scene]) -> None:
    """An unload whose frontend was killed before it answered may have happened: then there is nothing to unload."""
    scene_of(ConnectionResetError(), _UNLOADED).administer("extra/unload")
    scene_of(ConnectionResetError(), _NOT_LOADED).administer("extra/unload")


def test_failed_operation_without_a_lost_answer_is_an_error(scene_of: Callable[..., Scene]) -> None:
    """A failed unload needs an earlier lost answer, and a load counts only when it says so."""
    alone = scene_of(_NOT_LOADED)
    alone.alone = True
    with pytest.raises(AssertionError, match="nothing else was done"):
        alone.administer("extra/unload")
    with pytest.raises(AssertionError, match="does not succeed"):
        scene_of(ConnectionResetError(), _NOT_LOADED).administer("extra/load")
