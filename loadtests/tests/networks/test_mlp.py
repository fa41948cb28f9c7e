"""The benchmark's model and its ONNX file."""

import numpy as np
import onnx
import onnxruntime
import pytest

from stoker_bench.networks.onnx_graphs import INPUT_NAME, OUTPUT_NAME, WIDTHS, seeded_mlp


@pytest.mark.parametrize("rows", [1, 7])
def test_onnx_file_agrees_with_numpy(rows: int) -> None:
    """ONNX Runtime, which also checks the graph, agrees with the same layers in numpy."""
    mlp = seeded_mlp()
    session = onnxruntime.InferenceSession(mlp.onnx_bytes(), providers=["CPUExecutionProvider"])
    batch = np.random.default_rng(3).random((rows, WIDTHS[0]), dtype=np.float32)
    (logits,) = session.run([OUTPUT_NAME], {INPUT_NAME: batch})
    assert logits.shape == (rows, WIDTHS[-1])
    np.testing.assert_allclose(logits, mlp.logits(batch), atol=1e-4)


def test_onnx_checker_accepts_the_file() -> None:
    """The bytes are a complete model by the reference checker, shape inference included."""
    model = onnx.load_from_string(seeded_mlp().onnx_bytes())
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"


def test_seed_alone_decides_the_weights() -> None:
    """Two makings of one seed are the same file; another seed is another file."""
    assert seeded_mlp(5).onnx_bytes() == seeded_mlp(5).onnx_bytes()
    assert seeded_mlp(5).onnx_bytes() != seeded_mlp(6).onnx_bytes()


def test_layers_follow_the_widths() -> None:
    """A net of other widths computes a ReLU between its layers and none after the last."""
    mlp = seeded_mlp(1, widths=(3, 4, 2))
    row = np.array([[1, -2, 3]], dtype=np.float32)
    hidden = np.maximum(row @ mlp.weights[0] + mlp.biases[0], 0)
    np.testing.assert_allclose(mlp.logits(row), hidden @ mlp.weights[1] + mlp.biases[1], rtol=1e-6)
