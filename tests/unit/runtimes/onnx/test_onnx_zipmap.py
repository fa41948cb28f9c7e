"""Classifiers whose scores are lists of maps, as scikit-learn's converters make them, served as tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.contract.in_process import InProcessServer
from tests.zoo import classifier

from stoker.control.device_messages import DEVICE_END, SUPERVISOR_END, Loaded
from stoker.deployment import Deployment, Device
from stoker.runtimes.base import Runtime
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.zipmap import replace_maps_by_tensors
from stoker.tensors import Signature

NUMBERS, WORDS = (4, 5, 6), ("cat", "dog", "emu")
ROWS = np.array([[1, 2, 3, 4], [6, 5, 4, 3]], np.float32)


def runtime(path: Path) -> Runtime:
    deployment = Deployment("classes", 1, "onnx", path, path.parent, 8, 1000)
    return load_onnx(deployment, Device("cpu", 0, "a processor"), 1)


def run(data: bytes) -> list[Any]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": ROWS}))


@pytest.mark.parametrize("classes", [NUMBERS, WORDS])
@pytest.mark.parametrize("alone", [False, True])
def test_scores_are_a_tensor_of_the_same_name(classes: tuple[Any, ...], alone: bool) -> None:
    """The changed file has the numbers of the maps by column, also if it had no operator of ONNX itself."""
    data = classifier(classes)
    if alone:
        model = onnx.load_from_string(data)
        del model.opset_import[0]
        data = model.SerializeToString()
    changed = replace_maps_by_tensors(data)
    assert changed is not None
    content, labels = changed
    assert labels == {"probabilities": tuple(map(str, classes))}
    names, maps = run(data)
    found, scores = run(content)
    assert found.tolist() == names.tolist()
    assert [dict(zip(classes, row, strict=True)) for row in scores.tolist()] == maps


def test_rows_of_a_classifier_are_batched(tmp_path: Path) -> None:
    """With numbers as classes its rows have a fixed shape, and the labels are part of the signature."""
    (tmp_path / "model.onnx").write_bytes(classifier(NUMBERS))
    loaded = runtime(tmp_path / "model.onnx")
    assert [(spec.name, spec.shape, spec.labels) for spec in loaded.signature.outputs] == [
        ("label", (), ()),
        ("probabilities", (3,), ("4", "5", "6")),
    ]
    assert Signature.from_json(loaded.signature.to_json()) == loaded.signature
    message = Loaded(1, loaded.signature, 0.5, 0.5, 8)
    assert SUPERVISOR_END.decode(DEVICE_END.encode(message)) == message
    assert loaded.signature.model_tensors is not None
    assert loaded.signature.model_tensors.outputs[1].labels == ("4", "5", "6")
    _, scores = loaded.run([ROWS])
    np.testing.assert_allclose(scores, [[1, 2.5, 4], [6, 5.5, 5]])


def test_classes_that_are_words_are_served_too(tmp_path: Path) -> None:
    """With words as classes a request is a row; the labels are kept as well."""
    (tmp_path / "model.onnx").write_bytes(classifier(WORDS))
    tensors = runtime(tmp_path / "model.onnx").signature.tensors
    assert tensors is not None
    assert (tensors.outputs[1].labels, tensors.outputs[1].shape) == (WORDS, (-1, 3))
    assert tensors.batched


def test_models_without_maps_are_not_changed(tmp_path: Path) -> None:
    """The outputs are tensors, or another node uses the map."""
    model = onnx.load_from_string(classifier(NUMBERS))
    del model.graph.output[1]
    assert replace_maps_by_tensors(model.SerializeToString()) is None


def test_metadata_have_the_classes(tmp_path: Path) -> None:
    """They are in the order of the columns, and both protocols answer with numbers."""
    (tmp_path / "model.onnx").write_bytes(classifier(WORDS))
    with InProcessServer({"classes": runtime(tmp_path / "model.onnx")}) as server:
        metadata = json.loads(server.ask("GET", "/v2/models/classes").body)
        assert metadata["parameters"]["labels"] == {"probabilities": list(WORDS)}
        assert [info["datatype"] for info in metadata["outputs"]] == ["BYTES", "FP32"]
        given = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS.tolist()}
        answer = server.ask(path="/v2/models/classes/infer", body=json.dumps({"inputs": [given]}).encode())
        scores = json.loads(answer.body)["outputs"][1]
        assert (scores["shape"], scores["data"]) == ([2, 3], [1, 2.5, 4, 6, 5.5, 5])
        answer = server.ask(path="/v1/models/classes:predict", body=b'{"instances": [[1, 2, 3, 4]]}')
        assert json.loads(answer.body) == {"predictions": [{"label": "emu", "probabilities": [1, 2.5, 4]}]}
