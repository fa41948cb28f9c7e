"""KServe's REST client, in an environment of its own: its pins (pandas below 3, among others) contradict ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.contract.protocol_models import MATRIX
from tests.live_server import PRIMARY, LiveServer
from tests.patience import PROGRAM_S

PYTHON = Path(sys.prefix) / "kserve" / "bin" / "python"
CALLS = Path(__file__).parent / "kserve_client" / "calls.py"


@pytest.mark.skipif(
    not PYTHON.exists() and "CI" not in os.environ,
    reason="`make test` makes the environment of KServe's client",
)
def test_the_client_of_kserve(protocol_server: LiveServer) -> None:
    """Health, JSON, binary data, strings, several inputs, errors, and predict."""
    done = subprocess.run(
        [PYTHON, CALLS, f"http://127.0.0.1:{protocol_server.port}", f"Bearer {PRIMARY}"],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    scores = np.array([[1, 2, 3, 4], [0, 0, 0, 1.5]], np.float32) @ MATRIX
    assert printed["v1"] == {"predictions": scores.tolist()}
    v2 = printed["v2"]
    assert [v2.pop(name) for name in ("live", "ready", "model ready")] == [True, True, True]
    assert v2["json"]["id"] == "id-1"
    for name in ("json", "binary"):
        assert v2[name]["outputs"] == {"y": scores.ravel().tolist()}
    assert v2["strings"]["outputs"] == {"same": ["café", "", "words"]}
    assert v2["two inputs"]["outputs"] == {"sums": [3.0], "twice": [2, 4, 6]}
    assert v2["refused"][0] == 400
    assert "data-type is 'FP16', but model 'scores' expects 'FP32'" in v2["refused"][1]
    assert v2["unknown"][0] == 404
    assert "unknown model" in v2["unknown"][1]
