"""Models of PyTorch without a script: programs of torch.export, AOTInductor packages, TorchScript, and weights.

An exported program says what it takes. Of the others a request that the model answers says it: `sample_input`, or
what TorchScript keeps of the inputs that it was traced with. Whether the first axis is a batch is tried, with one,
two and three rows, for exporters fix sizes of 0 and 1; whether rows see each other is tried as for any other model.

See decision 54.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import DeclaredTensor, Deployment, Device, kind_of_torch_file
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.made_up_rows import sample_feeds
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import PROBE_ROWS, OutOfMemory, Outputs, Runtime, likely_sizes
from stoker.runtimes.integer_limits import Limits, check_limits, checked_indices, find_limits
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.pipeline import PipelinedExecution
from stoker.runtimes.precision import check_converts_on
from stoker.runtimes.torch_cuda import cuda_runtime
from stoker.runtimes.torch_files import load_program, load_weights
from stoker.runtimes.torch_model import (
    RunOf,
    TorchModel,
    allow_tf32,
    choose_layout,
    choose_precision,
    compile_module,
    has_images,
    is_out_of_memory,
)
from stoker.runtimes.wrapping import wrap_model
from stoker.samples.sample_files import describe_sample
from stoker.system.extras import how_to_install
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, Signature, TensorInfo, import_dtype

logger = logging.getLogger(__name__)

PACKAGE_TENSORS: Final = "stoker_tensors"
"""In the metadata of an AOTInductor package that `stoker models import` has made: what it takes and gives."""
_CUDA_FAULT: Final = re.compile(r"CUDA|CUBLAS|cuDNN|device-side", re.IGNORECASE)
_SAMPLE_ROWS: Final = 2
_UNKNOWN_TYPE: Final = re.compile(r"Deserializing (\S+) in pytree|namedtuple class (\S+) because")
"""PyTorch's words for a structure whose type is registered by a package that has not been imported."""


def load_torch(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load a model of PyTorch, by rows if its inputs are batches of rows of a fixed shape.

    PyTorch's threads, precision, cache and compilation are of the process, which should have nothing else to do.

    Raises:
        LoadFailed: PyTorch is not installed, the file cannot be loaded, it does not say what it takes, or a setting
            cannot be honoured.
    """
    if importlib.util.find_spec("torch") is None:
        raise LoadFailed(
            f"{deployment.path} is a model of PyTorch, which is not installed; {how_to_install('torch')}"
        )
    acceleration = deployment.acceleration
    check_converts_on(deployment.name, acceleration.precision, device.kind)
    if acceleration.compile:
        _keep_compiled_code(deployment)
    import torch

    # Filled in on a GPU, for all forms of the model.
    limits: dict[str, tuple[int, int]] = {}

    def run_of(model: TorchModel) -> Run:
        return partial(_run, torch, device.name_in_process, limits, model)

    _prepare(torch, deployment, threads)
    model = _open(torch, deployment, device)
    is_package = kind_of_torch_file(deployment.path) == "aotinductor"
    on_cuda = device.kind == "cuda"
    with checked_indices(torch) if on_cuda and not is_package else nullcontext():
        tensors = _describe(model, run_of(model), deployment)
        request = _request(tensors.inputs, 1 if tensors.batched else None, model.examples)
        if on_cuda:
            run = run_of(model)
            limits |= _safe_limits(request) if is_package else find_limits(run, tensors.inputs, request)
    examples = model.examples
    model, choices = _choose_form(torch, deployment, device, model, run_of, tensors)
    run = run_of(model)

    def rows_runtime(signature: Signature) -> Runtime:
        plain = TorchRuntime(run, signature)
        if not on_cuda:
            return plain
        known = {} if is_package else limits
        return cuda_runtime(torch, deployment, partial(_compute, torch, model), plain, known)

    computed_in = acceleration.precision if on_cuda else None
    runtime = wrap_model(deployment, run, tensors, rows_runtime, examples=examples, computed_in=computed_in)
    if on_cuda:
        _check_still_answers(deployment, run, request)
    if is_package:
        # What was safe to try is not all that it takes.
        limits.clear()
    if isinstance(runtime, PipelinedExecution):
        runtime.choice = "; ".join([runtime.choice, *choices])
    elif choices:
        logger.info("%s: %s", deployment.name, "; ".join(choices))
    return runtime


def _safe_limits(request: Feeds) -> dict[str, tuple[int, int]]:
    """The integers to try a compiled package with, into which one cannot look: those of a request, and 0 and 1."""
    return {
        name: (0, max(1, int(array.max())))
        for name, array in request.items()
        if array.dtype.kind in "iu" and array.size
    }


def _check_still_answers(deployment: Deployment, run: Run, request: Feeds) -> None:
    """Raise LoadFailed if what the model was tried with has broken CUDA in this process."""
    try:
        run(request)
    except Exception as error:
        if not _CUDA_FAULT.search(str(error)):
            raise
        raise LoadFailed(
            f"{deployment.path} has broken CUDA when it was tried with made-up rows ({in_one_line(error)}); give it "
            "a sample input, and say with batching: rows or batching: none whether rows may share a batch"
        ) from error


def _keep_compiled_code(deployment: Deployment) -> None:
    """Let PyTorch's compiler keep its code in the workspace, and leave no processes behind."""
    if deployment.engine_cache is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(deployment.engine_cache / "compiled")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def _prepare(torch: Any, deployment: Deployment, threads: int) -> None:
    torch.set_num_threads(threads)
    allow_tf32(torch, allowed=deployment.acceleration.precision != "fp32")
    if deployment.acceleration.memory_mb is not None and torch.cuda.is_available():
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        share = (deployment.acceleration.memory_mb << 20) / total_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))


def _choose_form(
    torch: Any,
    deployment: Deployment,
    device: Device,
    model: TorchModel,
    run_of: RunOf,
    tensors: ModelTensors,
) -> tuple[TorchModel, list[str]]:
    """Give a model the precision that was asked for, the faster layout, and compiled code if that was asked for.

    Returns:
        The model, and what was chosen, in words for the log.
    """
    name, acceleration = deployment.name, deployment.acceleration
    if device.kind == "cpu" and not acceleration.compile and not has_images(tensors.inputs):
        return model, []
    sizes = likely_sizes(deployment) if tensors.batched else [None]
    requests = [_request(tensors.inputs, rows, model.examples) for rows in sizes]
    sample = _sample(run_of(model), tensors, model)
    reopen = partial(_open, torch, deployment, device)
    choices = []
    if device.kind == "cuda":
        model, words = choose_precision(
            torch, name, acceleration.precision, device.kind, reopen, run_of, sample, model
        )
        choices.append(words)
    model, words = choose_layout(torch, name, run_of, sample, model)
    choices += [words] if words else []
    if acceleration.compile:
        model = compile_module(torch, name, run_of, [sample, *requests], model)
        choices.append("compiled")
    return model, choices


def _sample(run: Run, tensors: ModelTensors, model: TorchModel) -> Feeds:
    """A few different rows if the model takes them, else the request that it is known to answer."""
    if tensors.batched:
        feeds = sample_feeds(tensors.inputs, _SAMPLE_ROWS)
        try:
            run(feeds)
        except (InvalidInput, OutOfMemory) as error:
            logger.debug("it does not take made-up rows: %s", error)
        else:
            return feeds
    return _request(tensors.inputs, 1 if tensors.batched else None, model.examples)


def _open(torch: Any, deployment: Deployment, device: Device) -> TorchModel:
    """Load the file, whatever of PyTorch it is; raises LoadFailed."""
    model = _open_file(torch, deployment, device)
    _rename_by_position(model, deployment)
    return model


def _open_file(torch: Any, deployment: Deployment, device: Device) -> TorchModel:
    path = deployment.path
    kind = kind_of_torch_file(path)
    where = device.name_in_process
    try:
        with warnings.catch_warnings():
            # They advise who exports a model; what its operator can do is logged.
            warnings.simplefilter("ignore")
            if kind == "program":
                return _open_program(torch, deployment, where)
            if kind == "aotinductor":
                return _open_package(deployment, device)
            if kind == "torchscript":
                return _open_script(torch, path, where)
            if kind == "weights":
                return _open_weights(torch, deployment, where)
    except LoadFailed:
        raise
    except Exception as error:
        if is_out_of_memory(torch, error):
            raise OutOfMemory(str(error)) from error
        if found := _UNKNOWN_TYPE.search(str(error)):
            raise LoadFailed(
                f"{path} takes or gives a {found[1] or found[2]}, a type that only the package of the model knows: "
                "export a wrapper module that takes tensors and returns them in a dict or a tuple"
            ) from error
        raise LoadFailed(f"PyTorch {torch.__version__} cannot load {path}: {in_one_line(error)}") from error
    raise LoadFailed(
        f"{path} is no file of torch.export.save, TorchScript or torch.save: it is damaged, cut short, or something "
        "else"
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
        inputs.append(TensorInfo(name, _dtype_name(value.dtype), _declared_shape(value)))
    if inputs and inputs[0].shape[:1] == (-1,):
        _check_most_rows(program, values[inputs[0].name].shape[0], deployment)
    tree = torch.utils._pytree  # noqa: SLF001  # what torch.export itself describes structures with
    structure = program.call_spec.in_spec

    def apply(module: Any, tensors: list[Any]) -> Any:
        positional, named = tree.tree_unflatten(tensors, structure)
        return module(*positional, **named)

    names = [info.name for info in inputs]
    examples = _examples(torch, program.example_inputs, inputs)
    given = [name for name in program.graph_signature.user_outputs if name is not None]
    # A value that is no name is a constant.
    output_shapes = [_declared_shape(values.get(name) if isinstance(name, str) else None) for name in given]
    return TorchModel(
        program.module(), apply, names, inputs,
        is_exact=True, examples=examples, output_shapes=output_shapes,
    )  # fmt: skip


def _declared_shape(value: Any) -> tuple[int, ...]:
    """The sizes of a program's tensor, -1 for those that are free; a number has none."""
    return tuple(size if isinstance(size, int) else -1 for size in getattr(value, "shape", ()))


def _check_most_rows(program: Any, rows: Any, deployment: Deployment) -> None:
    """Raise LoadFailed if a program was exported for smaller batches than `max_batch_rows`.

    Args:
        rows: The program's symbol of their size.
    """
    limits = program.range_constraints.get(rows.node.expr)
    if limits is not None and limits.upper < deployment.max_batch_rows:
        raise LoadFailed(
            f"{deployment.path} was exported for at most {limits.upper} rows: set max_batch_rows: {limits.upper}, or "
            "export it with a larger Dim"
        )


def _examples(torch: Any, example_inputs: Any, inputs: Sequence[TensorInfo]) -> dict[str, np.ndarray] | None:
    """The request that a program was exported with; None if it keeps none, or it is no batch."""
    leaves = torch.utils._pytree.tree_leaves(example_inputs)  # noqa: SLF001  # as above
    if len(leaves) != len(inputs) or not all(hasattr(leaf, "detach") and leaf.ndim for leaf in leaves):
        return None
    return {info.name: _to_numpy(torch, info.name, leaf) for info, leaf in zip(inputs, leaves, strict=True)}


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
    # Its loader takes the first GPU that the process sees, the only one here. What it does for several threads asks
    # whether events have passed, which CUDA cannot capture.
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
        inputs = [TensorInfo(name, _dtype_name(kind.dtype()), tuple(kind.sizes())) for name, kind in pairs]
    return TorchModel(module, _apply, names, inputs)


def _open_weights(torch: Any, deployment: Deployment, device: str) -> TorchModel:
    is_pickled = deployment.allow_pickle and deployment.model_class is None
    module = _unpickle(torch, deployment, device) if is_pickled else _with_weights(deployment, device)
    module = module.to(device).eval()
    parameters = inspect.signature(module.forward).parameters.values()
    names = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return TorchModel(module, _apply, names)


def _unpickle(torch: Any, deployment: Deployment, device: str) -> Any:
    """Return the module that a file holds as a pickle, which is code of its author that the operator has allowed."""
    _admit_code(deployment)
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
    """Make an object of the class that the settings name, which is code of the operator's."""
    assert deployment.model_class is not None, "the caller has looked"
    module_name, _, class_name = deployment.model_class.partition(":")
    _admit_code(deployment)
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:
        raise LoadFailed(
            f"model_class {deployment.model_class} of {deployment.name} cannot be made without arguments "
            f"({type(error).__name__}: {in_one_line(error)})"
        ) from error


def _admit_code(deployment: Deployment) -> None:
    """Let modules beside the file be imported, and log what code runs."""
    folder = str(deployment.path.parent)
    sys.path.extend(each for each in [folder] if each not in sys.path)
    logger.info("loading %s runs %s", deployment.name, deployment.code_of_load)


_BY_POSITION: Final = re.compile(r".*__(\d+)")
"""Names in Triton's configurations of PyTorch models: `INPUT__0`."""


def _rename_by_position(model: TorchModel, deployment: Deployment) -> None:
    """Name inputs and outputs as a configuration does that numbers them."""
    declaration = deployment.declaration
    if declaration is None:
        return
    model.output_names = _by_position(declaration.outputs)
    names = _by_position(declaration.inputs)
    if names is None or len(names) != len(model.input_names):
        return
    renamed = dict(zip(model.input_names, names, strict=True))
    if model.inputs is not None:
        model.inputs = [dataclasses.replace(info, name=renamed[info.name]) for info in model.inputs]
    if model.examples is not None:
        model.examples = {renamed[name]: array for name, array in model.examples.items()}
    model.input_names = names


def _by_position(declared: Sequence[DeclaredTensor]) -> list[str] | None:
    """The names of tensors in the order of the numbers that end them; None unless these are 0, 1 and so on."""
    places = {int(found[1]): one.name for one in declared if (found := _BY_POSITION.fullmatch(one.name))}
    if not places or sorted(places) != list(range(len(declared))):
        return None
    return [places[number] for number in range(len(declared))]


def _describe(model: TorchModel, run: Run, deployment: Deployment) -> ModelTensors:
    """Find out what a model takes and gives, and whether its first axes may be a batch.

    Raises:
        LoadFailed: Nothing says what it takes, or it fails on the request that is to say so.
    """
    inputs = _inputs(model, deployment)
    sizes = {info.shape[:1] for info in inputs}
    # A program says which sizes are free; what was traced or sampled had one of many.
    may_batch = sizes == {(-1,)} if model.is_exact else len(sizes) == 1 and () not in sizes
    given = _try_rows(run, inputs, model.examples, deployment.name) if may_batch else []
    batched = bool(given)
    if batched:
        inputs = [TensorInfo(info.name, info.dtype, (-1, *info.shape[1:])) for info in inputs]
    else:
        try:
            given = [run(_request(inputs, None, model.examples))]
        except (InvalidInput, OutOfMemory) as error:
            raise LoadFailed(
                f"{deployment.path} fails on the request that it is tried with: {error}"
            ) from error
    if not given[0]:
        raise LoadFailed(f"{deployment.path} gives no tensor: let its forward return what is to be served")
    outputs = []
    for place, (name, array) in enumerate(given[0].items()):
        dtype = array.dtype.name
        if dtype not in NUMERIC_DTYPES:
            raise LoadFailed(f"{deployment.path} gives {dtype} as {name!r}; numbers are served")
        if model.output_shapes is not None:
            shape = model.output_shapes[place]
        elif batched and not any(-1 in info.shape[1:] for info in inputs):
            shape = array.shape
        else:
            # Which sizes follow from those of the inputs, or from their values, is not known.
            shape = (-1,) * array.ndim
        outputs.append(TensorInfo(name, dtype, (-1, *shape[1:]) if batched else shape))
    return ModelTensors(tuple(inputs), tuple(outputs), batched)


def _inputs(model: TorchModel, deployment: Deployment) -> list[TensorInfo]:
    """Return the inputs of a model: by its file, by its configuration, or by a request that it answers."""
    names = model.input_names
    if model.inputs is not None:
        shapes = [(info.dtype, info.shape) for info in model.inputs]
    elif deployment.declaration is not None and deployment.declaration.inputs:
        declared = {one.name: one for one in deployment.declaration.inputs}
        missing = [name for name in names if name not in declared]
        if missing:
            raise LoadFailed(
                f"{deployment.declaration.source}: the model's input {missing[0]!r} is missing there; add it"
            )
        shapes = [(declared[name].dtype, declared[name].shape) for name in names]
    elif deployment.sample_file is not None:
        model.examples = describe_sample(deployment.sample_file, names)
        shapes = [(model.examples[name].dtype.name, model.examples[name].shape) for name in names]
    else:
        raise LoadFailed(
            f"{deployment.path} does not say what it takes: give it a sample input with a request that it answers "
            "(sample_input.npz or .json beside it, or --sample-input), or save the model by torch.export.save"
        )
    return [TensorInfo(name, *shape) for name, shape in zip(names, shapes, strict=True)]


def _try_rows(
    run: Run, inputs: Sequence[TensorInfo], examples: Feeds | None, name: str
) -> list[Mapping[str, np.ndarray]]:
    """Run a model with several numbers of rows; returns what it gives, or nothing if its first axis is no batch."""
    answers = []
    for rows in PROBE_ROWS:
        try:
            answer = run(_request(inputs, rows, examples))
        except InvalidInput as error:
            logger.info("%s is not batched, for it does not take %d rows: %s", name, rows, error)
            return []
        if any(array.shape[:1] != (rows,) for array in answer.values()):
            logger.info("%s is not batched, for its outputs have no axis of rows", name)
            return []
        answers.append(answer)
    return answers


def _request(inputs: Sequence[TensorInfo], rows: int | None, examples: Feeds | None) -> dict[str, np.ndarray]:
    """A request with so many rows: the examples, repeated, or zeros; without a number as the model was exported."""
    feeds = {}
    for info in inputs:
        if examples is not None:
            array = examples[info.name]
            feeds[info.name] = array if rows is None else np.resize(array, (rows, *array.shape[1:]))
            continue
        shape = tuple(1 if size < 0 else size for size in info.shape)
        feeds[info.name] = np.zeros(shape if rows is None else (rows, *shape[1:]), info.dtype)
    return feeds


class TorchRuntime:
    """A model of PyTorch for rows of a fixed shape; several threads may run it."""

    def __init__(self, run: Run, signature: Signature) -> None:
        self._run = run
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]
        self.signature = signature

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch; see `Runtime.run`."""
        outputs = self._run(dict(zip(self._inputs, inputs, strict=True)))
        return [outputs[name] for name in self._outputs]

    def fork(self) -> TorchRuntime:
        """Return another runtime of the same model."""
        return TorchRuntime(self._run, self.signature)


def _run(torch: Any, device: str, limits: Limits, model: TorchModel, feeds: Feeds) -> dict[str, np.ndarray]:
    """Run one batch of named arrays.

    Raises:
        InvalidInput: The model does not take these sizes or values.
        OutOfMemory: The device has no memory for it.
    """
    check_limits(feeds, limits)
    with torch.inference_mode():
        try:
            given = _compute(
                torch, model, {name: _to_tensor(torch, feeds[name]).to(device) for name in model.input_names}
            )
            return {name: _to_numpy(torch, name, tensor) for name, tensor in given.items()}
        except Exception as error:
            if is_out_of_memory(torch, error):
                raise OutOfMemory(in_one_line(error)) from error
            if _CUDA_FAULT.search(str(error)) or not isinstance(error, _REFUSALS):
                raise
            raise InvalidInput.refused_by_model(in_one_line(error)) from error


def _compute(torch: Any, model: TorchModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Compute one batch of named tensors."""
    given = model([tensors[name] for name in model.input_names])
    return dict(_named(torch, given, model.output_names))


_REFUSALS: Final = (AssertionError, IndexError, RuntimeError, ValueError)
"""The errors of operators, and of guards of exported programs, for sizes and values that they do not take."""


def _named(torch: Any, given: Any, names: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    """The tensors of a result by name: keys of dictionaries and attributes, `output`, or `output_0` and so on.

    Numbers are tensors without axes, and None is left out.

    Raises:
        LoadFailed: Something else is among them, or two have one name.
    """
    leaves = list(_leaves(torch, given))
    named = [(_name_of(path, len(leaves)), leaf) for path, leaf in leaves if leaf is not None]
    if names is not None:
        if len(names) != len(named):
            raise LoadFailed(f"the model gives {len(named)} outputs, and {len(names)} are declared of it")
        named = [(name, leaf) for name, (_, leaf) in zip(names, named, strict=True)]
    taken = set()
    for name, leaf in named:
        if name in taken:
            raise LoadFailed(
                f"the model gives two outputs that are named {name!r}: name them apart in a wrapper"
            )
        taken.add(name)
        if isinstance(leaf, torch.Tensor):
            yield name, leaf
        elif isinstance(leaf, int | float):
            yield name, torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
        else:
            raise LoadFailed(
                f"the model gives a {type(leaf).__name__} as {name!r}: let it return tensors, or numbers, in dicts, "
                "tuples, lists or dataclasses"
            )


def _leaves(torch: Any, given: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The tensors and other values of a result, each with the path to it."""
    tree = torch.utils._pytree  # noqa: SLF001  # as torch.export names results
    for path, leaf in tree.tree_flatten_with_path(given)[0]:
        if dataclasses.is_dataclass(leaf):
            fields = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
            yield from (((*path, *below), each) for below, each in _leaves(torch, fields))
        else:
            yield path, leaf


def _name_of(path: Sequence[Any], count: int) -> str:
    if not path:
        return "output"
    words = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    name = "_".join(words)
    return (f"output_{name}" if count > 1 else "output") if words[0].isdecimal() else name


def _to_tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    # Rows of requests may be read-only memory, for which PyTorch warns.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _to_numpy(torch: Any, name: str, tensor: Any) -> np.ndarray:
    try:
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            import_dtype("bfloat16")
            raw: np.ndarray = tensor.view(torch.uint16).numpy()
            return raw.view("bfloat16")
        # With force it computes what is still to be negated, as the imaginary part of a conjugate is.
        array: np.ndarray = tensor.numpy(force=True)
    except (RuntimeError, TypeError) as error:
        if tensor.layout == torch.strided and _dtype_name(tensor.dtype) in NUMERIC_DTYPES:
            raise
        kind = f"{str(tensor.layout).removeprefix('torch.')} tensor of {_dtype_name(tensor.dtype)}"
        raise LoadFailed(f"{name!r} is a {kind}: let the model return dense tensors of numbers") from error
    return array


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
