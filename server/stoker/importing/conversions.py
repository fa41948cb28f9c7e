"""Converts a model's file to that of another way: `torch.onnx`, AOTInductor, tf2onnx, Keras to a SavedModel.

Run as `python -m stoker.importing.conversions`: converters take much memory, and may crash.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.deployment import kind_of_torch_file
from stoker.errors import LoadFailed
from stoker.gpu.confinement import enter_device
from stoker.importing.reference import Feeds, read_cases
from stoker.runtimes.torch.files import load_program
from stoker.runtimes.torch.formats import PACKAGE_TENSORS
from stoker.system.child_orders import answer_order
from stoker.system.extras import how_to_install
from stoker.tensors import ModelTensors, Signature

_MOST_ONNX_BYTES: Final = 1 << 30
"""Weights of larger models lie in a file beside the `.onnx` file, whose format ends at 2 GiB."""
_OPSET: Final = 18
_TORCHSCRIPT_OPSET: Final = 17
_OLDEST_KERAS: Final = (3, 12)


class Conversion(Struct, frozen=True):
    """A conversion to make.

    Attributes:
        source: The original's file or folder.
        target: The file to write; its folder exists.
        device: A setting of one device; compiled code is for it.
        tensors: What the original takes and gives.
        example: A request that it answers.
    """

    source: Path
    target: Path
    device: str
    tensors: ModelTensors
    example: Feeds

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in the original's order."""
        return [info.name for info in self.tensors.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in the original's order."""
        return [info.name for info in self.tensors.outputs]


def do(order: dict[str, Any]) -> dict[str, Any]:
    """Convert as ordered; the answer has nothing to say."""
    source, target = Path(order["source"]), Path(order["target"])
    if order["to"] == "tensorflow":
        _save_keras(source, target)
        return {}
    tensors = Signature.from_json(order["signature"]).model_tensors
    if tensors is None:
        raise LoadFailed("it has no tensors for inputs")
    cases = read_cases(Path(order["reference"]))
    # Exporters fix sizes of one.
    example = next((case for case in cases if case.kind == "batch"), cases[0]).feeds
    convert = _CONVERTERS.get((order["framework"], order["to"]))
    if convert is None:
        raise LoadFailed(f"nothing makes {order['to']} of a {order['framework']} model")
    convert(Conversion(source, target, order["device"], tensors, example))
    return {}


def _torch_to_onnx(order: Conversion) -> None:
    torch = _torch()
    if importlib.util.find_spec("onnxscript") is None:
        raise LoadFailed(
            f"PyTorch exports ONNX by onnxscript, which is not installed; {how_to_install('import')}"
        )
    names = {"input_names": order.input_names, "output_names": order.output_names}
    # Exporters advise who writes a model; what becomes of the conversion is measured.
    with warnings.catch_warnings(action="ignore"):
        if kind_of_torch_file(order.source) == "program":
            torch.onnx.export(
                load_program(order.source), (), order.target, dynamo=True, verbose=False,
                external_data=order.source.stat().st_size > _MOST_ONNX_BYTES, **names,
            )  # fmt: skip
            return
        module = torch.jit.load(str(order.source), map_location="cpu").eval()
        infos = (*order.tensors.inputs, *order.tensors.outputs)
        free = {
            info.name: {
                axis: "rows" if axis == 0 else f"{info.name}_{axis}"
                for axis, size in enumerate(info.shape)
                if size < 0
            }
            for info in infos
        }
        torch.onnx.export(
            module, _example(torch, order), order.target, dynamo=False, dynamic_axes=free,
            opset_version=_TORCHSCRIPT_OPSET, **names,
        )  # fmt: skip


def _torch_to_aoti(order: Conversion) -> None:
    torch = _torch()
    device, _ = enter_device(order.device, {"torch"})
    # Exporters advise who writes a model; what becomes of the conversion is measured.
    with warnings.catch_warnings(action="ignore"):
        if kind_of_torch_file(order.source) == "program":
            program = load_program(order.source)
        else:
            from torch._export.converter import TS2EPConverter

            module = torch.jit.load(str(order.source), map_location="cpu").eval()
            program = TS2EPConverter(module, _example(torch, order)).convert()
        if device.kind != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device.name_in_process)
        described = {
            "inputs": [[info.name, info.dtype, info.shape] for info in order.tensors.inputs],
            "outputs": order.output_names,
        }
        torch._inductor.aoti_compile_and_package(  # noqa: SLF001  # its documented place
            program,
            package_path=str(order.target),
            inductor_configs={"aot_inductor.metadata": {PACKAGE_TENSORS: json.dumps(described)}},
        )


def _example(torch: Any, order: Conversion) -> tuple[Any, ...]:
    # Copies: unpacked arrays cannot be written.
    return tuple(torch.from_numpy(order.example[name].copy()) for name in order.input_names)


def _torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        raise LoadFailed(f"PyTorch is not installed; {how_to_install('torch')}")
    import torch

    return torch


def _tensorflow_to_onnx(order: Conversion) -> None:
    tf = _tensorflow()
    if importlib.util.find_spec("tf2onnx") is None:
        raise LoadFailed(
            f"SavedModels are converted by tf2onnx, which is not installed; {how_to_install('import')}"
        )
    import onnx
    import tf2onnx

    model = tf.saved_model.load(str(order.source))
    signatures = model.signatures
    signature = signatures.get("serving_default") or next(iter(signatures.values()))

    def serve(*tensors: Any) -> Any:
        return signature(**dict(zip(order.input_names, tensors, strict=True)))

    specs = [
        tf.TensorSpec(
            None if info.any_rank else [None if size < 0 else size for size in info.shape],
            info.dtype,
            info.name,
        )
        for info in order.tensors.inputs
    ]
    converted, _ = tf2onnx.convert.from_function(
        tf.function(serve, input_signature=specs), input_signature=specs, opset=_OPSET
    )
    batched = all(info.shape[:1] == (-1,) for info in order.tensors.inputs)
    for tensor in (*converted.graph.input, *converted.graph.output) if batched else ():
        dims = tensor.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            dims[0].dim_param = "rows"
    large = converted.ByteSize() > _MOST_ONNX_BYTES
    onnx.save(
        converted,
        order.target,
        save_as_external_data=large,
        location=f"{order.target.name}.data" if large else None,
    )


def _save_keras(source: Path, target: Path) -> None:
    """Save a file of Keras as a SavedModel; layers with code in the file are refused, as Keras does."""
    _tensorflow()
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    if tuple(map(int, keras.__version__.split(".")[:2])) < _OLDEST_KERAS:
        raise LoadFailed(
            f"Keras {keras.__version__} runs code of files even in its safe mode (CVE-2025-9905 and others): install "
            f"{'.'.join(map(str, _OLDEST_KERAS))} or newer"
        )
    try:
        model = keras.models.load_model(source, safe_mode=True, compile=False)
    except Exception as error:
        first = str(error).partition(". ")[0]
        raise LoadFailed(f"Keras {keras.__version__} does not load {source.name}: {first}") from error
    model.export(target, verbose=False)


def _tensorflow() -> Any:
    if importlib.util.find_spec("tensorflow") is None:
        raise LoadFailed(f"TensorFlow is not installed; {how_to_install('tensorflow')}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    return tf


_CONVERTERS: Final[dict[tuple[str, str], Callable[[Conversion], None]]] = {
    ("torch", "onnx"): _torch_to_onnx,
    ("torch", "aoti"): _torch_to_aoti,
    ("tensorflow", "onnx"): _tensorflow_to_onnx,
}


if __name__ == "__main__":
    sys.exit(answer_order(do, "the converter fails"))
