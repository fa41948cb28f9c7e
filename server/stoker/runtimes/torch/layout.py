"""Images of a model of PyTorch with their channels last, if convolutions are faster so and the answers agree."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from stoker.runtimes.execution_choice import TOLERANCE
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.precision import float_difference
from stoker.runtimes.torch.model import RunOf, TorchModel
from stoker.tensors import TensorInfo

logger = logging.getLogger(__name__)

_RUNS: Final = 2
_FASTER: Final = 0.95
"""Channels are last if a batch then needs less than this part of the time."""
_IMAGE_AXES: Final = 4


def has_images(inputs: Sequence[TensorInfo]) -> bool:
    """Whether an input may be a batch of images."""
    return any(len(info.shape) == _IMAGE_AXES for info in inputs)


def choose_layout(
    torch: Any,
    name: str,
    run_of: RunOf,
    sample: Feeds,
    model: TorchModel,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> tuple[TorchModel, str]:
    """Put the channels of images last if the model has convolutions, the answers agree, and batches are faster.

    Returns:
        The model, and words for the log; empty if nothing changed.
    """
    module = model.module
    if not isinstance(module, torch.nn.Module) or all(array.ndim != _IMAGE_AXES for array in sample.values()):
        return model, ""
    if all(weights.ndim != _IMAGE_AXES for weights in module.parameters()):
        return model, ""
    apply = model.apply

    def apply_last(module: Any, tensors: list[Any]) -> Any:
        inputs = [
            tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == _IMAGE_AXES else tensor
            for tensor in tensors
        ]
        return apply(module, inputs)

    expected, first_ns = _measure(run_of(model), sample, clock_ns)
    with torch.no_grad():
        last = replace(model, module=module.to(memory_format=torch.channels_last), apply=apply_last)
        try:
            outputs, last_ns = _measure(run_of(last), sample, clock_ns)
            if float_difference(outputs, expected) <= TOLERANCE and last_ns < _FASTER * first_ns:
                return last, f"channels last ({last_ns / 1e6:.2f} ms; first {first_ns / 1e6:.2f} ms)"
        except Exception as error:  # noqa: BLE001  # a view may fail in another layout
            logger.debug("%s: with channels last: %s", name, error)
        model.module = module.to(memory_format=torch.contiguous_format)
    return model, ""


def _measure(run: Run, feeds: Feeds, clock_ns: Callable[[], int]) -> tuple[Mapping[str, np.ndarray], int]:
    """Return the outputs of a batch, and the shorter of two times in ns after a first run."""
    outputs = run(feeds)
    times_ns = []
    for _ in range(_RUNS):
        begun_ns = clock_ns()
        run(feeds)
        times_ns.append(clock_ns() - begun_ns)
    return outputs, min(times_ns)
