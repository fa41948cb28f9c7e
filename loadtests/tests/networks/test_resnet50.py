"""ResNet-50 without TensorFlow: as many weights as Keras's, and numbers that stay within FP16."""

import math

import numpy as np
import onnx
import onnxruntime

from stoker_bench.gpu.models import variant
from stoker_bench.networks.resnet50 import INPUT_NAME, ROW_SHAPE, resnet50, seeded_weights, weight_shapes

PARAMETERS = 25_636_712


def test_the_weights_are_as_many_as_keras_counts() -> None:
    """Weights, biases and statistics add up to the number that Keras gives for its ResNet50."""
    assert sum(map(math.prod, weight_shapes().values())) == PARAMETERS


def test_the_graph_gives_finite_probabilities_that_depend_on_the_image() -> None:
    """With FP16 weights and bytes as input, two images get different probabilities that sum to 1."""
    model = resnet50(seeded_weights())
    held = sum(math.prod(weight.dims) for weight in model.graph.initializer)
    assert held == PARAMETERS
    half = variant(model, "fp16", "uint8")
    (output,) = half.graph.output
    assert [axis.dim_value for axis in output.type.tensor_type.shape.dim] == [0, 1000]
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    weights = {weight.data_type for weight in half.graph.initializer}
    assert weights == {onnx.TensorProto.FLOAT16}
    session = onnxruntime.InferenceSession(half.SerializeToString(), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(3).integers(0, 256, (2, *ROW_SHAPE), np.uint8)
    images[1] //= 4
    (probabilities,) = session.run(None, {INPUT_NAME: images})
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-2)
    largest = probabilities.max(axis=1)
    # Neither all alike nor one class alone.
    assert (largest > 2 / 1000).all()
    assert (largest < 0.9).all()
    assert np.abs(probabilities[0] - probabilities[1]).max() > 1e-3
