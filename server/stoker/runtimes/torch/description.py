"""The inputs and outputs of a model of PyTorch, and whether its first axes are a batch: found by running it.

A program of torch.export has its inputs. For other files a request that the model answers shows them: `sample_input`,
or the inputs of a trace in TorchScript. Exporters fix sizes of 0 and 1, so the model runs with 1, 2 and 3 rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from stoker.deployment import Deployment
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.base import PROBE_ROWS, OutOfMemory
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.torch.model import TorchModel
from stoker.samples.sample_files import describe_sample
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, TensorInfo

logger = logging.getLogger(__name__)


def describe(model: TorchModel, run: Run, deployment: Deployment) -> ModelTensors:
    """Find the inputs and outputs of a model, and whether its first axes may be a batch.

    Raises:
        LoadFailed: The inputs are unknown, or the model fails on the request that shows them.
    """
    inputs = _inputs(model, deployment)
    sizes = {info.shape[:1] for info in inputs}
    # A program shows its free sizes; a trace or a sample has one size of many.
    may_batch = sizes == {(-1,)} if model.is_exact else len(sizes) == 1 and () not in sizes
    answers = _try_rows(run, inputs, model.examples, deployment.name) if may_batch else []
    batched = bool(answers)
    if batched:
        inputs = [TensorInfo(info.name, info.dtype, (-1, *info.shape[1:])) for info in inputs]
    else:
        try:
            answers = [run(make_request(inputs, None, model.examples))]
        except (InvalidInput, OutOfMemory) as error:
            raise LoadFailed(
                f"{deployment.path} fails on the request that it is tried with: {error}"
            ) from error
    if not answers[0]:
        raise LoadFailed(f"{deployment.path} gives no tensor: let its forward return tensors")
    outputs = []
    for place, (name, array) in enumerate(answers[0].items()):
        dtype = array.dtype.name
        if dtype not in NUMERIC_DTYPES:
            raise LoadFailed(f"{deployment.path} gives {dtype} as {name!r}; numbers are served")
        if model.output_shapes is not None:
            shape = model.output_shapes[place]
        elif batched and not any(-1 in info.shape[1:] for info in inputs):
            shape = array.shape
        else:
            # Any size may depend on the sizes or values of the inputs.
            shape = (-1,) * array.ndim
        outputs.append(TensorInfo(name, dtype, (-1, *shape[1:]) if batched else shape))
    return ModelTensors(tuple(inputs), tuple(outputs), batched)


def _inputs(model: TorchModel, deployment: Deployment) -> list[TensorInfo]:
    """Return the inputs of a model from its file, its configuration, or a request that it answers."""
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
            f"{deployment.path} does not describe its inputs: give it a sample input with a request that it answers "
            "(sample_input.npz or .json beside it, or --sample-input), or save the model by torch.export.save"
        )
    return [TensorInfo(name, *shape) for name, shape in zip(names, shapes, strict=True)]


def _try_rows(
    run: Run, inputs: Sequence[TensorInfo], examples: Feeds | None, name: str
) -> list[Mapping[str, np.ndarray]]:
    """Run a model with several numbers of rows; return the answers, or none if its first axis is no batch."""
    answers = []
    for rows in PROBE_ROWS:
        try:
            answer = run(make_request(inputs, rows, examples))
        except InvalidInput as error:
            logger.info("%s is not batched because it does not take %d rows: %s", name, rows, error)
            return []
        if any(array.shape[:1] != (rows,) for array in answer.values()):
            logger.info("%s is not batched because its outputs have no axis of rows", name)
            return []
        answers.append(answer)
    return answers


def make_request(
    inputs: Sequence[TensorInfo], rows: int | None, examples: Feeds | None
) -> dict[str, np.ndarray]:
    """Make a request of the examples, or of zeros if there are none.

    Args:
        rows: The number of rows; examples are repeated. None keeps the sizes of the examples or inputs.
    """
    feeds = {}
    for info in inputs:
        if examples is not None:
            array = examples[info.name]
            feeds[info.name] = array if rows is None else np.resize(array, (rows, *array.shape[1:]))
            continue
        shape = tuple(1 if size < 0 else size for size in info.shape)
        feeds[info.name] = np.zeros(shape if rows is None else (rows, *shape[1:]), info.dtype)
    return feeds
