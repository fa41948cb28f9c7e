"""The models of the bench on a GPU: variants of precision and input."""

import itertools
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest

from stoker_bench.gpu.models import ModelMaker, Precision, WireDtype, as_sent, variant
from stoker_bench.networks.onnx_graphs import seeded_mlp

TYPES = {"float32": "tensor(float)", "uint8": "tensor(uint8)"}


@pytest.mark.parametrize(
    ("precision", "wire_dtype"), list(itertools.product(get_args(Precision), get_args(WireDtype)))
)
def test_every_variant_gives_nearly_the_same(precision, wire_dtype) -> None:
    """Rows sent as floats or as bytes get the outputs of the model as it was, in float32."""
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
    tolerance = 5e-3 if precision == "fp16" else 1e-5
    np.testing.assert_allclose(outputs, mlp.logits(sent.astype(np.float32)), atol=tolerance)
    weights = {tensor.data_type for tensor in changed.graph.initializer}
    assert weights == {onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.FLOAT}
    # The model itself is used for further variants.
    assert model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT


def test_a_counting_bert_answers_as_the_plain_one(tmp_path: Path) -> None:
    """A number from the size of its batch is 1; with a fixed size it is a constant, and nothing counts any more."""
    model = ModelMaker(tmp_path).make_counting_bert("tiny", "fp32")
    rows = np.random.default_rng(3).random((3, 16), np.float32)
    plain = ModelMaker(tmp_path).make_bert("tiny", "fp32")
    np.testing.assert_array_equal(model.outputs()(rows), plain.outputs()(rows))
    assert model.path != plain.path

    operators = []
    for fixed in (False, True):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        if fixed:
            options.add_free_dimension_override_by_name("rows", 4)
        onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
        nodes = onnx.load(tmp_path / "optimised.onnx").graph.node
        operators.append({node.op_type for node in nodes} & {"Shape", "Cast", "Div"})
    assert operators[0] >= {"Shape", "Div"}
    assert operators[1] <= {"Cast"}
