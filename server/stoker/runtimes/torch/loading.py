"""Models of PyTorch without a script: programs of torch.export, AOTInductor packages, TorchScript, and weights.

See decision 54.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment, Device, kind_of_torch_file
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.made_up_rows import sample_feeds
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import OutOfMemory, Runtime, likely_sizes
from stoker.runtimes.integer_limits import Limits, check_limits, checked_indices, find_limits
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.pipeline import PipelinedExecution
from stoker.runtimes.precision import check_converts_on
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.runtimes.torch.compilation import compile_module, keep_compiled_code
from stoker.runtimes.torch.cuda import cuda_runtime
from stoker.runtimes.torch.description import describe, make_request
from stoker.runtimes.torch.formats import open_model
from stoker.runtimes.torch.layout import choose_layout, has_images
from stoker.runtimes.torch.model import RunOf, TorchModel, allow_tf32, is_out_of_memory
from stoker.runtimes.torch.precision import choose_precision
from stoker.runtimes.torch.tensors import named_outputs, to_numpy, to_tensor
from stoker.runtimes.wrapping import wrap_model
from stoker.system.extras import how_to_install
from stoker.tensors import ModelTensors, Signature

logger = logging.getLogger(__name__)

_CUDA_FAULT: Final = re.compile(r"CUDA|CUBLAS|cuDNN|device-side", re.IGNORECASE)
_SAMPLE_ROWS: Final = 2
_REFUSALS: Final = (AssertionError, IndexError, RuntimeError, ValueError)
"""Errors of operators, and of guards of exported programs, for sizes and values that they do not take."""


def load_torch(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load a model of PyTorch, by rows if its inputs are batches of rows of a fixed shape.

    The settings of PyTorch's threads, precision, cache and compilation are for the whole process, which should do
    nothing else.

    Raises:
        LoadFailed: PyTorch is not installed, the file cannot be loaded, its inputs are unknown, or a setting has no
            effect on it.
    """
    if importlib.util.find_spec("torch") is None:
        raise LoadFailed(
            f"{deployment.path} is a model of PyTorch, which is not installed; {how_to_install('torch')}"
        )
    acceleration = deployment.acceleration
    check_converts_on(deployment.name, acceleration.precision, device.kind)
    if acceleration.compile:
        keep_compiled_code(deployment)
    torch = _import_torch(deployment, threads)
    # They are filled in below on a GPU, for all forms of the model.
    limits: dict[str, tuple[int, int]] = {}

    def run_of(model: TorchModel) -> Run:
        return partial(_run, torch, device.name_in_process, limits, model)

    model = open_model(torch, deployment, device)
    is_package = kind_of_torch_file(deployment.path) == "aotinductor"
    on_cuda = device.kind == "cuda"
    with checked_indices(torch) if on_cuda and not is_package else nullcontext():
        tensors = describe(model, run_of(model), deployment)
        request = make_request(tensors.inputs, 1 if tensors.batched else None, model.examples)
        if on_cuda:
            run = run_of(model)
            limits |= _safe_limits(request) if is_package else find_limits(run, tensors.inputs, request)
    examples = model.examples
    model, choices = _choose_form(torch, deployment, device, model, run_of, tensors)
    run = run_of(model)

    def rows_runtime(signature: Signature) -> Runtime:
        plain = RowsRuntime(run, signature)
        if not on_cuda:
            return plain
        return cuda_runtime(
            torch, deployment, partial(_compute, torch, model), plain, {} if is_package else limits
        )

    computed_in = acceleration.precision if on_cuda else None
    runtime = wrap_model(deployment, run, tensors, rows_runtime, examples=examples, computed_in=computed_in)
    if on_cuda:
        _check_still_answers(deployment, run, request)
    if is_package:
        # The limits were for the load alone: the package may take larger numbers.
        limits.clear()
    if isinstance(runtime, PipelinedExecution):
        runtime.choice = "; ".join([runtime.choice, *choices])
    elif choices:
        logger.info("%s: %s", deployment.name, "; ".join(choices))
    return runtime


def _safe_limits(request: Feeds) -> dict[str, tuple[int, int]]:
    """Return integers that are safe for a compiled package, whose indices cannot be checked: 0, 1 and a request's."""
    return {
        name: (0, max(1, int(array.max())))
        for name, array in request.items()
        if array.dtype.kind in "iu" and array.size
    }


def _check_still_answers(deployment: Deployment, run: Run, request: Feeds) -> None:
    """Raise LoadFailed if a made-up request has broken CUDA in this process."""
    try:
        run(request)
    except Exception as error:
        if not _CUDA_FAULT.search(str(error)):
            raise
        raise LoadFailed(
            f"{deployment.path} has broken CUDA when it was tried with made-up rows ({in_one_line(error)}); give it "
            "a sample input, and set batching: rows or batching: none"
        ) from error


def _import_torch(deployment: Deployment, threads: int) -> Any:
    """Import PyTorch, with the settings of the process."""
    # Idle threads that spin would take the cores of the frontends.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(threads)
    allow_tf32(torch, allowed=deployment.acceleration.precision != "fp32")
    if deployment.acceleration.memory_mb is not None and torch.cuda.is_available():
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        share = (deployment.acceleration.memory_mb << 20) / total_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    return torch


def _choose_form(
    torch: Any,
    deployment: Deployment,
    device: Device,
    model: TorchModel,
    run_of: RunOf,
    tensors: ModelTensors,
) -> tuple[TorchModel, list[str]]:
    """Set the precision of a model, choose the faster layout, and compile the model if the settings say so.

    Returns:
        The model, and the choices in words for the log.
    """
    name, acceleration = deployment.name, deployment.acceleration
    if device.kind == "cpu" and not acceleration.compile and not has_images(tensors.inputs):
        return model, []
    sizes = likely_sizes(deployment) if tensors.batched else [None]
    requests = [make_request(tensors.inputs, rows, model.examples) for rows in sizes]
    sample = _sample_request(run_of(model), tensors, model)
    reopen = partial(open_model, torch, deployment, device)
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


def _sample_request(run: Run, tensors: ModelTensors, model: TorchModel) -> Feeds:
    """Return different made-up rows if the model takes them, else the request that it is known to answer."""
    if tensors.batched:
        feeds = sample_feeds(tensors.inputs, _SAMPLE_ROWS)
        try:
            run(feeds)
        except (InvalidInput, OutOfMemory) as error:
            logger.debug("it does not take made-up rows: %s", error)
        else:
            return feeds
    return make_request(tensors.inputs, 1 if tensors.batched else None, model.examples)


def _run(torch: Any, device: str, limits: Limits, model: TorchModel, feeds: Feeds) -> dict[str, np.ndarray]:
    """Run one batch of named arrays.

    Raises:
        InvalidInput: The model does not take these sizes or values.
        OutOfMemory: The device has no memory for it.
    """
    check_limits(feeds, limits)
    with torch.inference_mode():
        try:
            tensors = {name: to_tensor(torch, feeds[name]).to(device) for name in model.input_names}
            outputs = _compute(torch, model, tensors)
            return {name: to_numpy(torch, name, tensor) for name, tensor in outputs.items()}
        except Exception as error:
            if is_out_of_memory(torch, error):
                raise OutOfMemory(in_one_line(error)) from error
            if _CUDA_FAULT.search(str(error)) or not isinstance(error, _REFUSALS):
                raise
            raise InvalidInput.refused_by_model(in_one_line(error)) from error


def _compute(torch: Any, model: TorchModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Compute one batch of named tensors."""
    result = model([tensors[name] for name in model.input_names])
    return dict(named_outputs(torch, result, model.output_names))
