"""Models of TensorFlow that are imported need none to be served, if their conversion agrees."""

import json
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.importing import conversions, measuring
from stoker.importing.imports import ImportOrder, import_model
from stoker.models.repository import Repository
from stoker.models.way_choice import objection

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.skipif(find_spec("tf2onnx") is None, reason="tf2onnx is not installed"),
]


def test_a_file_of_keras_becomes_a_saved_model_and_onnx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways are in the version with one signature; neither writes beside the file that was imported."""
    import keras
    import tensorflow as tf

    def order_child(module: str, order: dict[str, Any], *_: object) -> dict[str, Any]:
        do = conversions.do if module.endswith("conversions") else measuring.do
        answer: dict[str, Any] = json.loads(json.dumps(do(order)))
        return answer

    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, {"KERAS_BACKEND": "tensorflow"}.get(name, "-1"))
    # A process can choose TensorFlow's devices and threads only once.
    monkeypatch.setattr("stoker.runtimes.tensorflow.import_tensorflow", lambda *_, **__: tf)
    monkeypatch.setattr("stoker.importing.imports.order_child", order_child)
    monkeypatch.setattr("stoker.models.way_measuring.order_child", order_child)
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3, activation="softmax")])
    path = tmp_path / "net.keras"
    model.save(path)
    order = ImportOrder("net", path, None, ("onnx",), "cpu", 1e-3, 8, 600.0)
    now = datetime(2026, 11, 27, tzinfo=UTC)
    registered = import_model(order, Repository(tmp_path / "models"), now, lambda *_: None)
    ways = registered.ways
    assert ways is not None
    assert (ways.original, list(ways.ways)) == ("tensorflow", ["tensorflow", "onnx"])
    assert [objection(one, batched=True) for one in ways.results] == ["", ""]
    assert (registered.files_dir / "onnx/model.onnx").is_file()
    assert registered.source == "net.keras"
    assert registered.signature is not None
    assert [one["name"] for one in registered.signature["inputs"]] == ["x"]
