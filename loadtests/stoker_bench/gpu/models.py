"""The models that the bench on a GPU serves, each in a precision and with a type of input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from stoker_bench.errors import BenchedServerError
from stoker_bench.gpu.variants import variant
from stoker_bench.networks.mlp import seeded_mlp
from stoker_bench.networks.mnist_cnn import mnist_cnn
from stoker_bench.networks.resnet50 import resnet50, seeded_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stoker_bench.gpu.variants import Precision, WireDtype

__all__ = ["NETWORKS", "GpuModel", "ModelMaker", "Network", "as_sent", "on_the_wire"]

Network = Literal["mlp", "cnn", "resnet50"]
NETWORKS: Final[Sequence[Network]] = ("mlp", "cnn", "resnet50")
MNIST_FILE: Final = "model.onnx"
BYTE_SCALE: Final = 255


@dataclass(frozen=True)
class GpuModel:
    """An ONNX file to measure.

    Attributes:
        network: Which one.
        precision: What it computes in.
        wire_dtype: What callers send.
        path: The ONNX file.
        input_name: Its only input.
        row_shape: Shape of one row.
        weights: Where its weights are from, for the report.
    """

    network: Network
    precision: Precision
    wire_dtype: WireDtype
    path: Path
    input_name: str
    row_shape: tuple[int, ...]
    weights: str

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{self.network} {self.precision}, {self.wire_dtype} input"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as callers send it."""
        return int(np.prod(self.row_shape)) * np.dtype(self.wire_dtype).itemsize

    def outputs(self) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        """Return what gives the outputs [n, outputs] for rows [n, *row_shape] in 0..1, by the file on the CPU."""
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])

        def run(rows: NDArray[np.float32]) -> NDArray[np.float32]:
            first: NDArray[np.float32] = session.run(None, {self.input_name: on_the_wire(rows, self)})[0]
            return first.reshape(len(rows), -1)

        return run


def as_sent(rows: NDArray[np.float32], wire_dtype: WireDtype) -> NDArray[Any]:
    """Return rows of numbers in 0..1 as callers send them; as integers they are multiplied by 255 and cut off."""
    if wire_dtype == "uint8":
        return (rows * BYTE_SCALE).astype(np.uint8)
    return rows.astype(wire_dtype)


def on_the_wire(rows: NDArray[np.float32], model: GpuModel) -> NDArray[Any]:
    """Return rows as a model's callers send them."""
    return as_sent(rows, model.wire_dtype)


class ModelMaker:
    """Writes the ONNX files; each network is built once.

    Args:
        folder: Where the files go.
        mnist: Run folders of `stoker train mnist`, by network; the others get random weights of the same shape.
        seed: Of the random weights.
    """

    def __init__(self, folder: Path, mnist: dict[Network, Path] | None = None, seed: int = 7) -> None:
        self._folder = folder
        self._mnist = mnist or {}
        self._seed = seed
        self._built: dict[Network, tuple[Any, str]] = {}

    def make(self, network: Network, precision: Precision, wire_dtype: WireDtype) -> GpuModel:
        """Write a variant of a network.

        Raises:
            BenchedServerError: A run folder that was given holds no such model.
        """
        import onnx

        if network not in self._built:
            self._built[network] = self._build(network)
        model, weights = self._built[network]
        # A file of its own for each: the engine of a provider may be kept beside it.
        path = self._folder / f"{network}-{precision}-{wire_dtype}.onnx"
        if not path.exists():
            onnx.save(variant(model, precision, wire_dtype), path)
        (tensor,) = model.graph.input
        shape = tuple(axis.dim_value for axis in tensor.type.tensor_type.shape.dim[1:])
        return GpuModel(network, precision, wire_dtype, path, tensor.name, shape, weights)

    def _build(self, network: Network) -> tuple[Any, str]:
        import onnx

        if network in self._mnist:
            file = self._mnist[network] / MNIST_FILE
            if not file.is_file():
                raise BenchedServerError(
                    f"{self._mnist[network]} has no {MNIST_FILE}; name a run folder of `stoker train mnist`"
                )
            return onnx.load(file), f"trained, {file}"
        random = f"random, seed {self._seed}"
        if network == "mlp":
            return onnx.load_model_from_string(seeded_mlp(self._seed).onnx_bytes()), random
        if network == "cnn":
            return mnist_cnn(self._seed), random
        return resnet50(seeded_weights(self._seed)), random
