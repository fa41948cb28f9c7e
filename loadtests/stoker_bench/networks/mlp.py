"""The benchmark's model: a 784-300-100-10 perceptron with seeded random weights, as an ONNX file."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stoker_bench.networks.onnx_file import FLOAT32, Tensor, model_bytes, node

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["INPUT_NAME", "OUTPUT_NAME", "WIDTHS", "Mlp", "seeded_mlp"]

WIDTHS = (784, 300, 100, 10)
INPUT_NAME = "images"
OUTPUT_NAME = "logits"


@dataclass(frozen=True)
class Mlp:
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
        return _model(self)

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


def _model(mlp: Mlp) -> bytes:
    nodes: list[bytes] = []
    weights: dict[str, NDArray[np.float32]] = {}
    source, last = INPUT_NAME, len(mlp.weights) - 1
    for layer, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        weights |= {f"weight{layer}": weight, f"bias{layer}": bias}
        output = OUTPUT_NAME if layer == last else f"sum{layer}"
        nodes.append(node("Gemm", [source, f"weight{layer}", f"bias{layer}"], output))
        if layer != last:
            source = f"active{layer}"
            nodes.append(node("Relu", [output], source))
    inputs = [Tensor(INPUT_NAME, FLOAT32, ("rows", mlp.weights[0].shape[0]))]
    outputs = [Tensor(OUTPUT_NAME, FLOAT32, ("rows", mlp.weights[-1].shape[1]))]
    return model_bytes("mlp", nodes, weights, inputs, outputs)
