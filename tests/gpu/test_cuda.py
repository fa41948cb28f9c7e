"""The server on an NVIDIA GPU; skipped where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.live_server import LiveServer
from tests.tiny_models import write_mlp

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]


def test_the_gpu_gives_the_classes_of_the_cpu(tmp_path: Path) -> None:
    """A model served from cuda:0 answers as it does from the CPU, and the start-up names the GPU."""
    model = write_mlp(tmp_path / "mlp.onnx")
    rows = np.random.default_rng(5).random((64, 784)).round(4).tolist()
    answers = {}
    for device in ("cpu", "cuda:0"):
        scratch = tmp_path / device.replace(":", "-")
        scratch.mkdir()
        with LiveServer(scratch, model, "--device", device) as server:
            answer = server.score(*rows)
            assert answer.status == 200
            answers[device] = np.array(json.loads(answer.body))
            assert f"device   {device}:" in server.output()
            if device == "cuda:0":
                assert 'stoker_gpu_memory_total_bytes{gpu="0",uuid="' in server.get("/metrics").body.decode()
    assert (answers["cpu"].argmax(axis=1) == answers["cuda:0"].argmax(axis=1)).all()
    np.testing.assert_allclose(answers["cuda:0"], answers["cpu"], rtol=1e-2, atol=1e-3)
