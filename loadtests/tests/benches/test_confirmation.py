"""`stoker profile` with a server under load: whole, as short as it can be."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from stoker.cli import main


def test_a_model_is_profiled_and_tried_on_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is started with the settings found, gets rows of the signature, and is ended."""
    place = ["rows", 4]
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, place) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", rows[:1], rows[1:])
    model = tmp_path / "doubler.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(model))
    options = ["--target-ms", "1000", "--rows", "4", "--seconds", "1", "--json", "--device", "cpu"]
    status = main(["profile", str(model), *options, "--workspace", str(tmp_path / "ws")])
    printed = json.loads(capsys.readouterr().out)
    assert status == 0
    assert printed["request_cost"]["most_requests_per_s"] > 0
    tried = [one for one in (printed["choice"], printed["default"], *printed["others"]) if one["confirmed"]]
    assert tried
    assert any(one["confirmed"]["load_rows_per_s"] > 0 for one in tried)
