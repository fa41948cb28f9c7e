"""The models of the bench on a GPU: variants of precision and input, and where their weights are from."""

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from stoker.errors import InvalidSettings
from stoker_bench.errors import BenchedServerError
from stoker_bench.gpu.command import _network_of
from stoker_bench.gpu.models import PRECISIONS, WIRE_DTYPES, ModelMaker, as_sent, variant
from stoker_bench.networks.onnx_graphs import mnist_cnn, seeded_mlp

TYPES = {"float32": "tensor(float)", "float16": "tensor(float16)", "uint8": "tensor(uint8)"}


@pytest.mark.parametrize(("precision", "wire_dtype"), list(itertools.product(PRECISIONS, WIRE_DTYPES)))
def test_every_variant_gives_nearly_the_same(precision, wire_dtype) -> None:
    """Rows sent as floats of either size or as bytes get the outputs of the model as it was, in float32."""
    mlp = seeded_mlp(widths=(6, 5, 3))
    model = onnx.load_model_from_string(mlp.onnx_bytes())
    changed = variant(model, precision, wire_dtype)
    session = onnxruntime.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"])
    (tensor,) = session.get_inputs()
    assert (tensor.name, tensor.type, tensor.shape) == ("images", TYPES[wire_dtype], ["rows", 6])
    rows = (np.arange(24, dtype=np.float32).reshape(4, 6) + 0.5) / 255
    (outputs,) = session.run(None, {"images": as_sent(rows, wire_dtype)})
    sent = np.floor(rows * 255) / 255 if wire_dtype == "uint8" else rows
    assert outputs.dtype == np.float32
    tolerance = 1e-5 if precision != "fp16" and wire_dtype != "float16" else 5e-3
    np.testing.assert_allclose(outputs, mlp.logits(sent.astype(np.float32)), atol=tolerance)
    weights = {tensor.data_type for tensor in changed.graph.initializer}
    assert weights == {onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.FLOAT}
    # The model itself is used for further variants.
    assert model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT


def test_the_cnn_is_that_of_the_training() -> None:
    """The random cnn has the number of weights of `stoker train mnist --network cnn`, and runs."""
    model = mnist_cnn()
    onnx.checker.check_model(model, full_check=True)
    floats = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT]
    held = sum(int(np.prod(each.dims)) for each in floats)
    assert held == (9 * 24 + 24) + (9 * 24 * 48 + 48) + (1200 * 128 + 128) + (128 * 10 + 10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": np.ones((3, 784), np.float32)})
    assert logits.shape == (3, 10)


def test_a_run_folder_gives_its_weights(tmp_path: Path) -> None:
    """The model of a run folder is taken in place of random weights; a folder without one is named."""
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(InvalidSettings, match=r"no run folder of `stoker train mnist`"):
        _network_of(run)
    (run / "metrics.json").write_text(json.dumps({"network": "softmax"}))
    with pytest.raises(InvalidSettings, match="takes an mlp or a cnn"):
        _network_of(run)
    (run / "metrics.json").write_text(json.dumps({"network": "mlp"}))
    assert _network_of(run) == "mlp"
    maker = ModelMaker(tmp_path, {"mlp": run})
    with pytest.raises(BenchedServerError, match=r"no model\.onnx"):
        maker.make("mlp", "fp32", "float32")
    seeded_mlp(widths=(4, 2)).save(run / "model.onnx")
    model = maker.make("mlp", "fp32", "uint8")
    assert (model.name, model.row_shape, model.row_bytes) == ("mlp fp32, uint8 input", (4,), 4)
    assert model.weights.startswith("trained, ")
    assert model.outputs()(np.zeros((2, 4), np.float32)).shape == (2, 2)
    assert maker.make("cnn", "fp32", "float32").weights == "random, seed 7"
