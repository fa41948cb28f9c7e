"""The perceptron that the benches serve, and a model of images, as ONNX files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stoker_bench.networks.graph_builder import GraphBuilder, float_values

WIDTHS = (784, 300, 100, 10)
INPUT_NAME = "images"
OUTPUT_NAME = "logits"
IMAGE_SHAPE: Final = (3, 224, 224)


class Mlp(Struct, frozen=True):
    """A perceptron with ReLU between its layers and none after the last.

    Attributes:
        weights: One float32 array [inputs, outputs] per layer.
        biases: One float32 array [outputs] per layer.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]

    def logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs, float32 [n, 10], for rows, float32 [n, 784]."""
        activations = rows
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                activations = np.maximum(activations, 0)
            activations = activations @ weight + bias
        return activations

    def onnx_bytes(self) -> bytes:
        """Return the model as the bytes of an ONNX file with a dynamic first axis."""
        graph = GraphBuilder({f"weight{layer}": weight for layer, weight in enumerate(self.weights)})
        source, last = INPUT_NAME, len(self.weights) - 1
        for layer, bias in enumerate(self.biases):
            output = OUTPUT_NAME if layer == last else f"sum{layer}"
            names = [source, graph.weight(f"weight{layer}"), graph.initializer(f"bias{layer}", bias)]
            source = graph.add("Gemm", names, output)
            if layer != last:
                source = graph.add("Relu", [output], f"active{layer}")
        rows = [float_values(INPUT_NAME, "rows", self.weights[0].shape[0])]
        logits = [float_values(OUTPUT_NAME, "rows", self.weights[-1].shape[1])]
        content: bytes = graph.model("mlp", rows, logits).SerializeToString()
        return content

    def save(self, path: Path) -> None:
        """Write the model as an ONNX file."""
        path.write_bytes(self.onnx_bytes())


def seeded_mlp(seed: int = 7, widths: tuple[int, ...] = WIDTHS) -> Mlp:
    """Make a perceptron whose random weights depend on the seed alone."""
    random = np.random.default_rng(seed)
    weights, biases = [], []
    for inputs, outputs in itertools.pairwise(widths):
        scale = np.sqrt(2 / inputs)
        weights.append((random.standard_normal((inputs, outputs)) * scale).astype(np.float32))
        biases.append((random.standard_normal(outputs) * 0.1).astype(np.float32))
    return Mlp(tuple(weights), tuple(biases))


def write_averages() -> bytes:
    """Return an ONNX model of images, float32 [rows, 3, 224, 224], that gives the mean of each channel."""
    graph = GraphBuilder({})
    graph.add("Flatten", [graph.add("GlobalAveragePool", ["image"], "pooled")], "averages")
    images, means = float_values("image", "rows", *IMAGE_SHAPE), float_values("averages", "rows", 3)
    content: bytes = graph.model("averages", [images], [means]).SerializeToString()
    return content
