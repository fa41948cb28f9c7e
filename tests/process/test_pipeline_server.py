"""A whole server with a pipeline of two ONNX models and an entry script between them."""

from __future__ import annotations

from pathlib import Path

from tests.http.raw_http import bearer, request
from tests.process.conftest import Serve
from tests.tiny_models import BATCHED_SCRIPT, RAISE, write_doubler, write_script

ADMIN = "admin-key-of-the-tests-0001"
DEPLOYMENT = """
frontends: 1
models:
- {path: double.onnx}
- {path: half.onnx}
- {path: triple/score.py, name: triple}
pipelines:
  chain:
    steps:
    - {model: double, inputs: {x: sent}, outputs: {y: doubled}}
    - {model: triple, inputs: {data: doubled}, outputs: {result: tripled}}
    - {model: half, inputs: {x: tripled}, outputs: {y: halved}}
    outputs: [halved, tripled]
"""


def test_a_pipeline_is_served_and_follows_its_models(tmp_path: Path, serve: Serve) -> None:
    """Rows go through three processes; a model that is unloaded ends the pipeline, and the message has its step."""
    write_doubler(tmp_path / "double.onnx")
    write_doubler(tmp_path / "half.onnx", 0.5)
    write_script(tmp_path / "triple", BATCHED_SCRIPT)
    (tmp_path / "deployment.yaml").write_text(DEPLOYMENT)
    server = serve("--config", tmp_path / "deployment.yaml", env={"STOKER_ADMIN_KEY": ADMIN})
    path = "/api/v1/service/chain/score"
    shown = "pipeline chain (double, triple, half): sent float32[n,4] -> halved float32[n,4], tripled float32[n,4]"
    assert shown in server.output()
    scored = server.score([1, 2, 3, 4], [5, 6, 7, 8], path=path)
    assert scored.json() == {
        "halved": [[3.0, 6.0, 9.0, 12.0], [15.0, 18.0, 21.0, 24.0]],
        "tripled": [[6.0, 12.0, 18.0, 24.0], [30.0, 36.0, 42.0, 48.0]],
    }
    failed = server.score([RAISE / 2, 0, 0, 0], path=path)
    assert (failed.status, failed.error_code()) == (500, "model_failed")
    assert failed.json()["message"].startswith("Step triple: ")
    assert server.metric("stoker_requests_total", model="double", status="200") == 2
    with server.connect() as connection:
        unload = request("POST", "/v2/repository/models/half/unload", [bearer(ADMIN)], b"")
        assert connection.ask(unload).status == 200
    gone = server.score([1, 2, 3, 4], path=path)
    assert (gone.status, gone.error_code()) == (503, "not_ready")
    assert "step half: the model half is not served" in gone.json()["message"]
    assert server.ready
