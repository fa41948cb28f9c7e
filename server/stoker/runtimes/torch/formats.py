"""Files of PyTorch, each format opened as a `TorchModel`: programs, AOTInductor packages, TorchScript, weights."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import DeclaredTensor, Deployment, Device, kind_of_torch_file
from stoker.errors import LoadFailed
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.torch.files import load_program, load_weights
from stoker.runtimes.torch.model import TorchModel, is_out_of_memory
from stoker.runtimes.torch.tensors import dtype_name, to_numpy
from stoker.tensors import TensorInfo

logger = logging.getLogger(__name__)

PACKAGE_TENSORS: Final = "stoker_tensors"
"""The key of inputs and outputs in the metadata of an AOTInductor package that `stoker models import` has made."""
_UNKNOWN_TYPE: Final = re.compile(r"Deserializing (\S+) in pytree|namedtuple class (\S+) because")
"""PyTorch's messages on a structure whose type another package would have to register."""
_BY_POSITION: Final = re.compile(r".*__(\d+)")
"""Names in Triton's configurations of PyTorch models: `INPUT__0`."""


def open_model(torch: Any, deployment: Deployment, device: Device) -> TorchModel:
    """Load a file of any format of PyTorch; raise LoadFailed or OutOfMemory."""
    model = _open_file(torch, deployment, device)
    _rename_by_position(model, deployment)
    return model


def _open_file(torch: Any, deployment: Deployment, device: Device) -> TorchModel:
    path = deployment.path
    kind = kind_of_torch_file(path)
    try:
        with warnings.catch_warnings():
            # These warnings are for the author of a model. Advice for its operator is logged.
            warnings.simplefilter("ignore")
            if kind == "program":
                return _open_program(torch, deployment, device.name_in_process)
            if kind == "aotinductor":
                return _open_package(deployment, device)
            if kind == "torchscript":
                return _open_script(torch, path, device.name_in_process)
            if kind == "weights":
                return _open_weights(torch, deployment, device.name_in_process)
    except LoadFailed:
        raise
    except Exception as error:
        if is_out_of_memory(torch, error):
            raise OutOfMemory(str(error)) from error
        if match := _UNKNOWN_TYPE.search(str(error)):
            raise LoadFailed(
                f"{path} takes or gives a {match[1] or match[2]}, a type that only the package of the model knows: "
                "export a wrapper module that takes tensors and returns them in a dict or a tuple"
            ) from error
        raise LoadFailed(f"PyTorch {torch.__version__} cannot load {path}: {in_one_line(error)}") from error
    raise LoadFailed(
        f"{path} is no file of torch.export.save, TorchScript or torch.save: it is damaged, cut short, or no "
        "file of PyTorch"
    )


def _open_program(torch: Any, deployment: Deployment, device: str) -> TorchModel:
    path = deployment.path
    program = load_program(path, allow_pickle=deployment.allow_pickle)
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = []
    for name in program.graph_signature.user_inputs:
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            raise LoadFailed(
                f"{path} takes {name!r}, which is no tensor: export it with that value fixed in a wrapper module"
            )
        inputs.append(TensorInfo(name, dtype_name(value.dtype), _declared_shape(value)))
    if inputs and inputs[0].shape[:1] == (-1,):
        _check_most_rows(program, values[inputs[0].name].shape[0], deployment)
    tree = torch.utils._pytree  # noqa: SLF001  # torch.export itself describes structures by it
    structure = program.call_spec.in_spec

    def apply(module: Any, tensors: list[Any]) -> Any:
        positional, named = tree.tree_unflatten(tensors, structure)
        return module(*positional, **named)

    names = [info.name for info in inputs]
    examples = _examples(torch, program.example_inputs, inputs)
    outputs = [name for name in program.graph_signature.user_outputs if name is not None]
    # An output that is no name is a constant.
    output_shapes = [_declared_shape(values.get(name) if isinstance(name, str) else None) for name in outputs]
    return TorchModel(
        program.module(), apply, names, inputs,
        is_exact=True, examples=examples, output_shapes=output_shapes,
    )  # fmt: skip


def _declared_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a program's tensor, with -1 for free sizes; a number has no axes."""
    return tuple(size if isinstance(size, int) else -1 for size in getattr(value, "shape", ()))


def _check_most_rows(program: Any, rows: Any, deployment: Deployment) -> None:
    """Raise LoadFailed if a program was exported for smaller batches than `max_batch_rows`.

    Args:
        rows: The program's symbol for the number of rows.
    """
    limits = program.range_constraints.get(rows.node.expr)
    if limits is not None and limits.upper < deployment.max_batch_rows:
        raise LoadFailed(
            f"{deployment.path} was exported for at most {limits.upper} rows: set max_batch_rows: {limits.upper}, or "
            "export it with a larger Dim"
        )


def _examples(torch: Any, example_inputs: Any, inputs: Sequence[TensorInfo]) -> dict[str, np.ndarray] | None:
    """Return the request with which a program was exported; None if the file has none, or it is no batch."""
    leaves = torch.utils._pytree.tree_leaves(example_inputs)  # noqa: SLF001  # as above
    if len(leaves) != len(inputs) or not all(hasattr(leaf, "detach") and leaf.ndim for leaf in leaves):
        return None
    return {info.name: to_numpy(torch, info.name, leaf) for info, leaf in zip(inputs, leaves, strict=True)}


def _open_package(deployment: Deployment, device: Device) -> TorchModel:
    path = deployment.path
    if not deployment.allow_pickle:
        raise LoadFailed(
            f"{path} is an AOTInductor package, whose compiled code runs when it is loaded: trust it with "
            "allow_pickle: true, or serve the program that it was compiled from"
        )
    from torch._inductor import aoti_load_package
    from torch.utils._pytree import treespec_loads

    logger.info("loading %s runs %s", deployment.name, deployment.code_of_load)
    # The loader takes the first GPU that the process sees, the only one here. For several threads it would query
    # events, which CUDA cannot capture.
    on_cuda = device.kind == "cuda"
    package = aoti_load_package(str(path), **({"run_single_threaded": True} if on_cuda else {}))
    turn = threading.Lock() if on_cuda else nullcontext()
    metadata = package.get_metadata()
    compiled_for = metadata.get("AOTI_DEVICE_KEY", device.kind)
    if compiled_for != device.kind:
        raise LoadFailed(
            f"{path} was compiled for {compiled_for}: compile it for {device.kind}, or set device"
        )
    structure, _ = map(treespec_loads, package.loader.get_call_spec())

    def apply(package: Any, tensors: list[Any]) -> Any:
        positional, named = structure.unflatten(tensors)
        with turn:
            return package(*positional, **named)

    if PACKAGE_TENSORS in metadata:
        described = json.loads(metadata[PACKAGE_TENSORS])
        inputs = [TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in described["inputs"]]
        names = [info.name for info in inputs]
        return TorchModel(package, apply, names, inputs, is_exact=True, output_names=described["outputs"])
    count = structure.num_leaves
    return TorchModel(
        package, apply, ["input"] if count == 1 else [f"input_{number}" for number in range(count)]
    )


def _open_script(torch: Any, path: Path, device: str) -> TorchModel:
    module = torch.jit.load(str(path), map_location=device, _restore_shapes=True).eval()
    logger.info("%s is TorchScript, which PyTorch has deprecated: save it by torch.export.save", path.name)
    arguments = module.forward.schema.arguments[1:]
    for argument in arguments:
        if str(argument.type) != "Tensor" and not argument.has_default_value():
            raise LoadFailed(
                f"{path} takes {argument.name!r}, a {argument.type}: script a module whose forward takes tensors"
            )
    names = [argument.name for argument in arguments if str(argument.type) == "Tensor"]
    traced = [value.type() for value in list(module.graph.inputs())[1 : 1 + len(names)]]
    inputs = None
    if all(kind.kind() == "TensorType" and kind.sizes() is not None and kind.dtype() for kind in traced):
        pairs = zip(names, traced, strict=True)
        inputs = [TensorInfo(name, dtype_name(kind.dtype()), tuple(kind.sizes())) for name, kind in pairs]
    return TorchModel(module, _apply, names, inputs)


def _open_weights(torch: Any, deployment: Deployment, device: str) -> TorchModel:
    is_pickled = deployment.allow_pickle and deployment.model_class is None
    module = _unpickle(torch, deployment, device) if is_pickled else _with_weights(deployment, device)
    module = module.to(device).eval()
    parameters = inspect.signature(module.forward).parameters.values()
    names = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return TorchModel(module, _apply, names)


def _unpickle(torch: Any, deployment: Deployment, device: str) -> Any:
    """Return a pickled module. Loading it runs code of its author, which the operator has allowed."""
    _prepare_imports(deployment)
    module = torch.load(deployment.path, map_location=device, weights_only=False)
    if not isinstance(module, torch.nn.Module):
        raise LoadFailed(
            f"{deployment.path} holds {type(module).__name__}, and no module of PyTorch: leave allow_pickle out, "
            "and name the class with model_class: MODULE:CLASS"
        )
    return module


def _with_weights(deployment: Deployment, device: str) -> Any:
    """Return a module of the class that the settings name, with the weights of the file."""
    path = deployment.path
    if deployment.model_class is None:
        raise LoadFailed(
            f"{path} holds weights, and no program: save the model by torch.export.save, or name its class with "
            "model_class: MODULE:CLASS, a module beside the file; a module that is pickled whole needs "
            "allow_pickle: true, which runs the code of its author"
        )
    weights = load_weights(path, device)
    module = _instantiate(deployment)
    module.load_state_dict(weights)
    return module


def _apply(module: Any, tensors: list[Any]) -> Any:
    return module(*tensors)


def _instantiate(deployment: Deployment) -> Any:
    """Make an object of the class that the settings name; this runs code of the operator."""
    assert deployment.model_class is not None, "`_with_weights` has checked it"
    module_name, _, class_name = deployment.model_class.partition(":")
    _prepare_imports(deployment)
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:
        raise LoadFailed(
            f"model_class {deployment.model_class} of {deployment.name} cannot be made without arguments "
            f"({type(error).__name__}: {in_one_line(error)})"
        ) from error


def _prepare_imports(deployment: Deployment) -> None:
    """Let modules beside the file be imported, and log the code that runs."""
    folder = str(deployment.path.parent)
    sys.path.extend(each for each in [folder] if each not in sys.path)
    logger.info("loading %s runs %s", deployment.name, deployment.code_of_load)


def _rename_by_position(model: TorchModel, deployment: Deployment) -> None:
    """Rename inputs and outputs if the configuration numbers them."""
    declaration = deployment.declaration
    if declaration is None:
        return
    model.output_names = _order_by_number(declaration.outputs)
    names = _order_by_number(declaration.inputs)
    if names is None or len(names) != len(model.input_names):
        return
    renamed = dict(zip(model.input_names, names, strict=True))
    if model.inputs is not None:
        model.inputs = [dataclasses.replace(info, name=renamed[info.name]) for info in model.inputs]
    if model.examples is not None:
        model.examples = {renamed[name]: array for name, array in model.examples.items()}
    model.input_names = names


def _order_by_number(declared: Sequence[DeclaredTensor]) -> list[str] | None:
    """Return names in the order of the numbers at their ends; None unless these are 0, 1 and so on."""
    places = {int(match[1]): one.name for one in declared if (match := _BY_POSITION.fullmatch(one.name))}
    if not places or sorted(places) != list(range(len(declared))):
        return None
    return [places[number] for number in range(len(declared))]
