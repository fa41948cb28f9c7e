"""The models that the bench on a GPU serves, each in a precision and with a type of input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from stoker_bench.networks import bert
from stoker_bench.networks.onnx_graphs import IMAGE_SHAPE, seeded_mlp, write_averages
from stoker_bench.networks.resnet50 import resnet50, seeded_weights

Network = Literal["mlp", "resnet50"]
Precision = Literal["fp32", "tf32", "fp16"]
"""`fp32` and `tf32` are one file, run with other settings of the CUDA provider."""
WireDtype = Literal["float32", "uint8"]
"""The dtypes of inputs; integers are scaled to 0..1 inside the graph."""
BYTE_SCALE: Final = 255


@dataclass(frozen=True)
class GpuModel:
    """An ONNX file to measure.

    Attributes:
        precision: Precision of the computation.
        wire_dtype: Dtype of requests; token ids are int64.
        reference: ONNX file with the right outputs; None if that is the file itself.
    """

    network: Network | Literal["averages", "bert"]
    precision: Precision
    wire_dtype: WireDtype | Literal["int64"]
    path: Path
    input_name: str
    row_shape: tuple[int, ...]
    reference: Path | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.network} {self.precision}, {self.wire_dtype} input"

    def outputs(self) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        """Return a function from rows [n, *row_shape] in 0..1 to outputs [n, outputs], by the file on the CPU."""
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(
            self.reference or self.path, providers=["CPUExecutionProvider"]
        )

        def run(rows: NDArray[np.float32]) -> NDArray[np.float32]:
            first: NDArray[np.float32] = session.run(None, {self.input_name: on_the_wire(rows, self)})[0]
            return first.reshape(len(rows), -1)

        return run


def as_sent(rows: NDArray[np.float32], wire_dtype: WireDtype | Literal["int64"]) -> NDArray[Any]:
    """Return rows of numbers in 0..1 as callers send them; as bytes or token ids they are scaled and cut off."""
    if wire_dtype == "uint8":
        return (rows * BYTE_SCALE).astype(np.uint8)
    if wire_dtype == "int64":
        return (rows * bert.VOCABULARY).astype(np.int64)
    return rows.astype(wire_dtype)


def on_the_wire(rows: NDArray[np.float32], model: GpuModel) -> NDArray[Any]:
    """Return rows as a model's callers send them."""
    return as_sent(rows, model.wire_dtype)


class ModelMaker:
    """Writes the ONNX files, with random weights that depend on the seed; each network is built once."""

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self._folder = folder
        self.seed = seed
        self._built: dict[Network, Any] = {}

    def make(self, network: Network, precision: Precision, wire_dtype: WireDtype) -> GpuModel:
        """Write a variant of a network."""
        import onnx

        if network not in self._built:
            self._built[network] = self._build(network)
        model = self._built[network]
        # A file of its own for each: the engine of a provider may be kept beside it.
        path = self._folder / f"{network}-{precision}-{wire_dtype}.onnx"
        if not path.exists():
            onnx.save(variant(model, precision, wire_dtype), path)
        (tensor,) = model.graph.input
        shape = tuple(axis.dim_value for axis in tensor.type.tensor_type.shape.dim[1:])
        return GpuModel(network, precision, wire_dtype, path, tensor.name, shape)

    def make_bert(self, sizes: str, precision: Precision) -> GpuModel:
        """Write a BERT in float32, which the server converts and fuses itself.

        Args:
            sizes: A key of `bert.SIZES`.
        """
        import onnx

        path, chosen = self._folder / f"bert-{sizes}.onnx", bert.SIZES[sizes]
        onnx.save(bert.bert(bert.seeded_weights(chosen, self.seed), chosen), path)
        return GpuModel("bert", precision, "int64", path, bert.INPUT_NAME, (chosen.tokens,))

    def make_counting_bert(self, sizes: str, precision: Precision) -> GpuModel:
        """Write the same with logits that are multiplied by a number from the size of the batch, which is 1.

        ONNX Runtime computes it on the CPU, and captures no graph of several sizes in one session.
        """
        import onnx

        plain = self.make_bert(sizes, precision)
        model, path = onnx.load(plain.path), self._folder / f"counting-bert-{sizes}.onnx"
        multiply_by_one(model)
        onnx.save(model, path)
        return replace(plain, path=path)

    def make_averages(self) -> GpuModel:
        """Write a model of images that computes hardly anything."""
        path = self._folder / "averages.onnx"
        path.write_bytes(write_averages())
        return GpuModel("averages", "fp32", "float32", path, "image", IMAGE_SHAPE)

    def _build(self, network: Network) -> Any:
        import onnx

        if network == "mlp":
            return onnx.load_model_from_string(seeded_mlp(self.seed).onnx_bytes())
        return resnet50(seeded_weights(self.seed))


def multiply_by_one(model: Any) -> None:
    """Multiply the output of an `onnx.ModelProto` by the number of its rows over itself."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    (tensor,), (output,), nodes = model.graph.input, model.graph.output, model.graph.node
    (last,) = (node for node in nodes if output.name in node.output)
    last.output[list(last.output).index(output.name)] = "before_counting"
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "first_axis"))
    nodes.extend(
        [
            helper.make_node("Shape", [tensor.name], ["counted_sizes"], "count_sizes"),
            helper.make_node("Gather", ["counted_sizes", "first_axis"], ["counted_rows"], "count_rows"),
            helper.make_node("Cast", ["counted_rows"], ["row_count"], "cast_rows", to=TensorProto.FLOAT),
            helper.make_node("Div", ["row_count", "row_count"], ["rows_over_rows"], "divide_rows"),
            helper.make_node("Mul", ["before_counting", "rows_over_rows"], [output.name], "multiply_by_one"),
        ]
    )


def variant(model: Any, precision: Precision, wire_dtype: WireDtype) -> Any:
    """Return a copy of a model that computes in `precision` and takes `wire_dtype`; outputs stay float32.

    Args:
        model: An `onnx.ModelProto` with one float32 input, float32 outputs and plain operators.
        precision: The precision of weights and activations.
        wire_dtype: The dtype of the input.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if precision == "fp16":
        copy = _in_float16(copy)
    _take(copy, wire_dtype)
    onnx.checker.check_model(copy)
    return copy


def _in_float16(model: Any) -> Any:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    outputs = [output.name for output in model.graph.output]
    # Every weight: by itself the converter leaves small ones in float32, and casts at each run.
    converted = convert_float_to_float16(model, keep_io_types=outputs, force_fp16_initializers=True)
    # A server that is asked for FP16 may convert once more, and would name its own casts alike.
    for node in converted.graph.node:
        node.name = _renamed(node.name)
        node.input[:] = map(_renamed, node.input)
        node.output[:] = map(_renamed, node.output)
    for value in converted.graph.value_info:
        value.name = _renamed(value.name)
    return converted


def _renamed(name: str) -> str:
    return name.replace("graph_output_cast", "float32_output")


def _take(model: Any, wire_dtype: WireDtype) -> None:
    """Put a cast, and for integers a scale, between the input and whatever reads it."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    (tensor,) = model.graph.input
    computed = tensor.type.tensor_type.elem_type
    sent = helper.np_dtype_to_tensor_dtype(np.dtype(wire_dtype))
    if sent == computed:
        return
    inner = f"{tensor.name}_values"
    for node in model.graph.node:
        for place, source in enumerate(node.input):
            if source == tensor.name:
                node.input[place] = inner
    tensor.type.tensor_type.elem_type = sent
    if wire_dtype == "uint8":
        dtype = np.float16 if computed == TensorProto.FLOAT16 else np.float32
        model.graph.initializer.append(numpy_helper.from_array(np.array(1 / 255, dtype), f"{inner}_scale"))
        cast = helper.make_node("Cast", [tensor.name], [f"{inner}_cast"], f"{inner}_cast", to=computed)
        scaled = helper.make_node("Mul", [f"{inner}_cast", f"{inner}_scale"], [inner], inner)
        added = [cast, scaled]
    else:
        added = [helper.make_node("Cast", [tensor.name], [inner], inner, to=computed)]
    for place, node in enumerate(added):
        model.graph.node.insert(place, node)
