"""`stoker profile`: a model is timed, settings are searched, a deployment file is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live_server import run_stoker

from stoker.settings.loading import load_settings

SCRIPT = """
import time

import stoker


def init():
    pass


@stoker.batched(shape=(2,), dtype="float32")
def run(batch):
    time.sleep(0.02 + 0.02 * len(batch))
    return batch * 2
"""


@pytest.mark.long
def test_a_script_is_profiled_and_can_be_served(tmp_path: Path) -> None:
    """The way from its path to a deployment file; the profile has the expected load."""
    script, output = tmp_path / "slow.py", tmp_path / "deployment.yaml"
    script.write_text(SCRIPT)
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text(f"models:\n  - path: {script}\n    max_batch_rows: 2\n")
    done = run_stoker(
        *("profile", "slow", "--config", str(sizes), "--target-ms", "2000", "--seconds", "1"),
        *("--no-confirm", "--json"),
        *("--output", str(output), "--workspace", str(tmp_path / "ws")),
    )
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert profile["curves"]["auto"]["rows"] == [1, 2]
    assert profile["curves"]["auto"]["ms"][0] >= 30
    choice = profile["choice"]
    assert 0 < choice["load_rows_per_s"] <= choice["peak_rows_per_s"]
    assert choice["confirmed"] is None
    (model,) = load_settings({}, {}, output, ()).models
    assert (model.target_ms, model.max_batch_rows) == (2000, choice["settings"]["max_batch_rows"])


def test_a_script_without_a_sample_is_refused(tmp_path: Path) -> None:
    """The message says how to give one."""
    script = tmp_path / "score.py"
    script.write_text("def init():\n    pass\n\n\ndef run(data):\n    return data\n")
    done = run_stoker("profile", str(script), "--target-ms", "50", "--no-confirm", "--seconds", "1")
    assert done.returncode == 2
    assert "--data FILE" in done.stderr
