"""A server with limits of groups of models: rows and device time, over all models and frontends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.live_server import LiveServer, wait_until

pytestmark = pytest.mark.long

SCRIPT = """
import time

def init():
    pass

def run(raw_data):
    time.sleep(0.2)
    return [1]
"""
DEVICE_TIME = re.compile(rb'^stoker_device_busy_seconds_total\{.*model="slow-a"', re.MULTILINE)


def test_models_share_the_limits_of_their_group(tmp_path: Path) -> None:
    """Without keys, in two frontends; models without a limit are not concerned."""
    models = []
    for name in ("shop-a", "shop-b", "slow-a", "slow-b", "free"):
        script = tmp_path / f"{name}.py"
        script.write_text(SCRIPT if name.startswith("slow") else SCRIPT.replace("0.2", "0"))
        models.append({"path": str(script), "name": name})
    limits = {
        "shop-*": {"rows_per_s": 0.001, "burst_s": 3000},
        "slow-*": {"device_ms_per_s": 0.01, "burst_s": 10_000},
    }
    deployment = tmp_path / "deployment.yaml"
    settings = {"models": models, "model_limits": limits, "frontends": 2, "auth": False, "device": "cpu"}
    deployment.write_text(json.dumps(settings))
    with LiveServer(tmp_path, "--config", deployment) as server:

        def ask(name: str) -> tuple[int, str]:
            answer = server.score([0.0], path=f"/api/v1/service/{name}/score")
            return answer.status, "" if answer.status == 200 else answer.json()["message"]

        answers = [ask(name) for name in ("shop-a", "shop-b", "shop-a", "shop-b", "shop-a", "free")]
        assert [status for status, _ in answers] == [200, 200, 200, 429, 429, 200]
        assert answers[3][1].startswith("The limit of the models shop-* is reached, 0.001 rows a second")
        # The first request takes 200 of the 100 ms of device time, which the device process counts after the answer:
        # the next one has to wait.
        assert ask("slow-a")[0] == 200
        wait_until(lambda: DEVICE_TIME.search(server.get("/metrics").body), "its device time is counted")
        status, message = ask("slow-b")
        assert status == 429
        assert "the models slow-* is reached, 0.01 ms of device time a second" in message
        assert ask("free")[0] == 200
