"""ResNet-50 with seeded random weights as an ONNX graph, layer by layer that of `keras.applications.ResNet50`.

Version 1 with the stride in the first convolution of a block, biases in the convolutions and an epsilon of 1.001e-5,
as Keras has it. Source of the architecture: https://arxiv.org/abs/1512.03385.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker_bench.networks.graph_builder import GraphBuilder, float_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]

INPUT_NAME: Final = "images"
OUTPUT_NAME: Final = "probabilities"
ROW_SHAPE: Final = (224, 224, 3)
CLASSES: Final = 1000
EPSILON: Final = 1.001e-5

_STACKS: Final = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Filters, blocks, and the stride of the first block."""
_GROWTH: Final = 4
_LAST_GAMMA: Final = 0.25
"""Scale of each block's last normalisation. With 1, as untrained networks have it, activations double from block to
block; trained ones do not, and FP16 ends at 65504."""


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight, by Keras's layer and weight name, in Keras's order of axes."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, size: int, inputs: int, outputs: int) -> None:
        shapes[f"{name}_conv/kernel"] = (size, size, inputs, outputs)
        shapes[f"{name}_conv/bias"] = (outputs,)
        for weight in ("gamma", "beta", "moving_mean", "moving_variance"):
            shapes[f"{name}_bn/{weight}"] = (outputs,)

    convolution("conv1", 7, 3, 64)
    channels = 64
    for name, filters, _, shortcut in blocks():
        if shortcut:
            convolution(f"{name}_0", 1, channels, _GROWTH * filters)
        convolution(f"{name}_1", 1, channels, filters)
        convolution(f"{name}_2", 3, filters, filters)
        convolution(f"{name}_3", 1, filters, _GROWTH * filters)
        channels = _GROWTH * filters
    shapes["predictions/kernel"] = (channels, CLASSES)
    shapes["predictions/bias"] = (CLASSES,)
    return shapes


def blocks() -> Iterator[tuple[str, int, int, bool]]:
    """Yield each block's name, filters, stride, and whether its shortcut has a convolution."""
    for stack, (filters, blocks, stride) in enumerate(_STACKS, start=2):
        for block in range(1, blocks + 1):
            yield f"conv{stack}_block{block}", filters, stride if block == 1 else 1, block == 1


def seeded_weights(seed: int = 7) -> dict[str, NDArray[np.float32]]:
    """Draw all weights from one seed: He initialisation, normalisations near those of a trained network.

    Activations stay in FP16's range for inputs in 0..1, and the probabilities of two images differ.
    """
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes().items():
        layer, _, kind = name.partition("/")
        if kind == "kernel":
            gain = 1.0 if layer == "predictions" else 2.0
            drawn = random.standard_normal(shape, np.float32) * math.sqrt(gain / math.prod(shape[:-1]))
        elif kind == "gamma":
            drawn = np.full(shape, _LAST_GAMMA if layer.endswith("_3_bn") else 1.0)
        elif kind == "moving_variance":
            drawn = random.uniform(0.8, 1.2, shape)
        else:
            drawn = random.standard_normal(shape, np.float32) * 0.05
        weights[name] = np.asarray(drawn, np.float32)
    return weights


def resnet50(weights: Weights) -> Any:
    """Return the network as an `onnx.ModelProto`.

    Args:
        weights: One float32 array for each name of `weight_shapes`.

    Returns:
        The model: `images`, float32 [rows, 224, 224, 3], to `probabilities`, float32 [rows, 1000].
    """
    graph = _ResnetBuilder(weights)
    graph.add("Transpose", [INPUT_NAME], "channels_first", perm=[0, 3, 1, 2])
    stem = graph.normalised("conv1", "channels_first", stride=2, pad=3, relu=True)
    # Keras pads the pooling with 0, ONNX with the least number; behind a ReLU both are the same.
    source = graph.add("MaxPool", [stem], "pool1_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for name, _, stride, shortcut in blocks():
        source = _block(graph, name, source, stride, shortcut)
    source = graph.add("GlobalAveragePool", [source], "avg_pool")
    source = graph.add("Flatten", [source], "features")
    kernel, bias = (graph.weight(f"predictions/{kind}") for kind in ("kernel", "bias"))
    graph.add("Gemm", [source, kernel, bias], "logits")
    graph.add("Softmax", ["logits"], OUTPUT_NAME, axis=1)
    images = float_values(INPUT_NAME, "rows", *ROW_SHAPE)
    return graph.model("resnet50", [images], [float_values(OUTPUT_NAME, "rows", CLASSES)])


def _block(graph: _ResnetBuilder, name: str, source: str, stride: int, shortcut: bool) -> str:
    """Add a residual block, and return its output."""
    past = graph.normalised(f"{name}_0", source, stride=stride) if shortcut else source
    inner = graph.normalised(f"{name}_1", source, stride=stride, relu=True)
    inner = graph.normalised(f"{name}_2", inner, pad=1, relu=True)
    inner = graph.normalised(f"{name}_3", inner)
    return graph.add("Relu", [graph.add("Add", [past, inner], f"{name}_add")], f"{name}_out")


class _ResnetBuilder(GraphBuilder):
    """The parts that ResNet-50 is made of."""

    def weight(self, name: str) -> str:
        """Add an initialiser; kernels of convolutions go from Keras's order of axes to ONNX's."""
        values = self.weights[name]
        if values.ndim == len(("height", "width", "inputs", "outputs")):
            values = values.transpose(3, 2, 0, 1)
        return self.initializer(name, np.ascontiguousarray(values))

    def normalised(self, name: str, source: str, *, stride: int = 1, pad: int = 0, relu: bool = False) -> str:
        """Add a convolution with its batch normalisation, and a ReLU if asked for."""
        size = self.weights[f"{name}_conv/kernel"].shape[0]
        kernel = [self.weight(f"{name}_conv/{kind}") for kind in ("kernel", "bias")]
        shape = {"kernel_shape": [size, size], "strides": [stride, stride], "pads": [pad] * 4}
        convolved = self.add("Conv", [source, *kernel], f"{name}_conv", **shape)
        kinds = ("gamma", "beta", "moving_mean", "moving_variance")
        statistics = [self.weight(f"{name}_bn/{kind}") for kind in kinds]
        output = self.add("BatchNormalization", [convolved, *statistics], f"{name}_bn", epsilon=EPSILON)
        return self.add("Relu", [output], f"{name}_relu") if relu else output
