"""Pipelines in a frontend: routes while models come and go, and rights of keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.puppets import PuppetRuntime, metric_memory
from tests.unit.gateway.test_service_manager import Frontend, play

from stoker.control.frontend_messages import PipelineRules, Route, ServerRules
from stoker.errors import NotReady, OutOfScope
from stoker.gateway.assembly import access_of
from stoker.gateway.describing.exposition import render
from stoker.keys.callers import CallerBook
from stoker.keys.keyring import Keyring
from stoker.metrics.memory import MetricMemory
from stoker.settings.choices import WORDS
from stoker.settings.pipelines import Pipeline, Step

TWICE = Pipeline(
    "twice",
    (
        Step("first", "digits", inputs={"x": "sent"}, outputs={"y": "once"}),
        Step("second", "digits", inputs={"x": "once"}, outputs={"y": "answer"}),
    ),
)


@pytest.fixture
def memory() -> MetricMemory:
    """Counters that nobody has counted yet."""
    return metric_memory()


def test_a_pipeline_is_routed_as_its_models_are(memory: MetricMemory) -> None:
    """It waits for its models, follows their versions in each request from then on, and says when one has gone."""
    answers: list[tuple[int, Any]] = []

    async def score(frontend: Frontend) -> None:
        service = frontend.gateway.directory.find("twice")
        service.score(
            b'{"data": [[1, 2]]}', None, lambda status, _, body: answers.append((status, json.loads(body))), 0
        )
        for _ in range(2):
            for exchange in frontend.manager.replicas.exchanges.values():
                exchange.ring()
            frontend.turn_devices()
            # The loop looks at the doorbells, then it calls who reads them.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def scene(frontend: Frontend) -> None:
        gateway, manager = frontend.gateway, frontend.manager
        manager.join(PipelineRules(TWICE, 5, 10**9, WORDS))
        with pytest.raises(NotReady, match="step first: the model digits is not served"):
            gateway.directory.find("twice")
        frontend.load(0, 3)
        frontend.route(v3=0)
        assert gateway.directory.find("twice").ready
        assert b"/api/v1/service/twice/score" in gateway.targets.scoring
        await score(frontend)
        frontend.load(1, 4, runtime=PuppetRuntime(answer=lambda inputs: [inputs[0] + 1]))
        await score(frontend)
        frontend.route(v3=0, v4=1)
        await score(frontend)
        manager.sweep()
        assert b'stoker_ready_replicas{model="twice",version="1"} 1.0' in render(
            memory, gateway.directory.models, gateway.load
        )
        manager.route(Route("digits", None, {}, ()))
        with pytest.raises(NotReady, match="step first: the model digits is not served"):
            gateway.directory.find("twice")
        assert b"/api/v1/service/twice/score" not in gateway.targets.scoring
        gateway.check_ready()

    play(memory, scene)
    assert answers == [(200, [[4, 8]]), (200, [[4, 8]]), (200, [[3, 4]])]


def test_key_for_a_pipeline_does_not_open_its_models(tmp_path: Path) -> None:
    """A key for its models does not open the pipeline either: its author chose the inputs that callers may send."""
    keys_dir = tmp_path / "keys"
    for name in ("twice", "digits"):
        Keyring(keys_dir, name).ensure()
    key = CallerBook(keys_dir).add("ads", terms={"models": frozenset({"twice"})})
    server = ServerRules(True, False, keys_dir, 1000, 1000, 1, 1 << 20)
    bearer = b"Bearer " + key.encode()
    assert access_of("twice", server).check(bearer).name == "ads"
    with pytest.raises(OutOfScope):
        access_of("digits", server).check(bearer)
