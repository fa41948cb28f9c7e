"""A loaded model of PyTorch, and the forms that its module may take: other precisions and layouts, compiled.

Each form gives the answers of the module as it was loaded, or it is not taken.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.execution_choice import TOLERANCE
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.precision import compare_precision, float_difference, is_converted
from stoker.tensors import TensorInfo

logger = logging.getLogger(__name__)

_NO_MEMORY: Final = re.compile(r"can't allocate memory|out of memory", re.IGNORECASE)
_RUNS: Final = 2
_FASTER: Final = 0.95
"""Another layout is taken if it needs less than this part of the time."""
_IMAGE_AXES: Final = 4


@dataclass(slots=True)
class TorchModel:
    """A loaded model as a function of a flat list of tensors.

    Attributes:
        module: What computes: a module, or a compiled package.
        apply: Calls the module with the tensors.
        input_names: The names of its inputs, in order.
        inputs: What it takes; None where the file does not say.
        is_exact: Whether `inputs` say which sizes are free; those of a trace are the sizes that were traced.
        examples: A request that it answers; None if nothing says one.
        output_names: The names of its outputs, in order; None for those of its result.
        output_shapes: The shapes of its outputs, in order, -1 for free sizes; None where the file does not say.
    """

    module: Any
    apply: Callable[[Any, list[Any]], Any]
    input_names: list[str]
    inputs: Sequence[TensorInfo] | None = None
    is_exact: bool = False
    examples: Mapping[str, np.ndarray] | None = None
    output_names: list[str] | None = None
    output_shapes: Sequence[tuple[int, ...]] | None = None

    def __call__(self, tensors: list[Any]) -> Any:
        """Compute a batch of tensors on the model's device, in the order of the inputs."""
        return self.apply(self.module, tensors)


RunOf = Callable[[TorchModel], Run]
"""Makes the function of named arrays that a model is."""


def is_out_of_memory(torch: Any, error: Exception) -> bool:
    """Whether PyTorch says that the device or the host has no memory."""
    return isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(str(error)) is not None


def allow_tf32(torch: Any, *, allowed: bool) -> None:
    """Let products and convolutions of float32 on a GPU compute with 19 bits, or not."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def _exact(torch: Any) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    allow_tf32(torch, allowed=False)
    try:
        yield
    finally:
        allow_tf32(torch, allowed=before)


# Precision.


def choose_precision(
    torch: Any,
    name: str,
    precision: str,
    device_kind: str,
    reopen: Callable[[], TorchModel],
    run_of: RunOf,
    sample: Feeds,
    model: TorchModel,
) -> tuple[TorchModel, str]:
    """Make a model compute in a precision: with converted weights, or else by autocast; whichever agrees first.

    Args:
        reopen: Loads the model again: a conversion cannot be undone.
        sample: A request that the model answers.
        model: The model as it was loaded; not to be used any more.

    Returns:
        The model, and what the log says of it.

    Raises:
        LoadFailed: The answers differ too much from float32, or the model has one precision only.
    """
    with _exact(torch):
        expected = run_of(model)(sample)
    if not is_converted(precision):
        difference = compare_precision(name, precision, run_of(model)(sample), expected)
        return model, _in_words(precision, difference)
    if not isinstance(model.module, torch.nn.Module):
        raise LoadFailed(
            f"{name}: a compiled package computes in the precision that it was compiled for: leave precision out, or "
            f"compile the model in {precision}"
        )
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    failures: list[str] = []
    for way in ("converted", "autocast"):
        if failures:
            model = reopen()
        try:
            formed = (
                convert(torch, model, dtype)
                if way == "converted"
                else autocast(torch, model, device_kind, dtype)
            )
            difference = compare_precision(name, precision, run_of(formed)(sample), expected)
        except Exception as error:  # noqa: BLE001  # whatever a module raises in another precision
            failures.append(f"{way}: {in_one_line(error)}")
        else:
            return formed, f"{_in_words(precision, difference)}, {way}"
    raise LoadFailed(f"{name} cannot compute with precision: {precision}: {'; '.join(failures)}")


def _in_words(precision: str, difference: float) -> str:
    return f"precision {precision}, outputs differ from float32 by {difference:.2g} of the largest one"


def convert(torch: Any, model: TorchModel, dtype: Any) -> TorchModel:
    """Convert a module's float32 weights and constants in place; inputs and outputs of the model stay float32."""
    for part in model.module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _rewrite_types(torch, part, dtype)
    apply = model.apply

    def converted(module: Any, tensors: list[Any]) -> Any:
        given = apply(module, [one.to(dtype) if one.dtype == torch.float32 else one for one in tensors])
        return _widened(torch, given, dtype)

    with torch.no_grad():
        return replace(model, module=model.module.to(dtype), apply=converted)


def _rewrite_types(torch: Any, program: Any, dtype: Any) -> None:
    """Let a program of torch.export compute in another type where its code names float32."""

    def renamed(value: Any) -> Any:
        return dtype if value == torch.float32 else value

    _drop_type_checks(torch, program)
    for node in program.graph.nodes:
        node.args = tuple(map(renamed, node.args))
        node.kwargs = {key: renamed(value) for key, value in node.kwargs.items()}
    program.recompile()


def _drop_type_checks(torch: Any, program: Any) -> None:
    """Remove the assertions that tensors have the types with which a program was exported."""
    check = torch.ops.aten._assert_tensor_metadata.default  # noqa: SLF001  # as torch.export names it
    for node in [node for node in program.graph.nodes if node.target is check]:
        program.graph.erase_node(node)
    program.recompile()


def autocast(torch: Any, model: TorchModel, device_kind: str, dtype: Any) -> TorchModel:
    """Let products and convolutions compute in a type of 16 bits; weights stay float32."""
    for part in model.module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _drop_type_checks(torch, part)
    apply = model.apply

    def casting(module: Any, tensors: list[Any]) -> Any:
        with torch.autocast(device_kind, dtype):
            return _widened(torch, apply(module, tensors), dtype)

    return replace(model, apply=casting)


def _widened(torch: Any, given: Any, dtype: Any) -> Any:
    """A result with float32 in the place of a type of 16 bits."""

    def widen(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == dtype else leaf

    return torch.utils._pytree.tree_map(widen, given)  # noqa: SLF001  # what torch.export describes structures with


# Layout.


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
    """Keep images with their channels last if the model has convolutions, answers agree, and that is faster.

    Returns:
        The model, and what the log says of it; empty if there was no choice.
    """
    module = model.module
    if not isinstance(module, torch.nn.Module) or all(array.ndim != _IMAGE_AXES for array in sample.values()):
        return model, ""
    if all(weights.ndim != _IMAGE_AXES for weights in module.parameters()):
        return model, ""
    apply = model.apply

    def applied(module: Any, tensors: list[Any]) -> Any:
        layout = torch.channels_last
        return apply(
            module,
            [one.contiguous(memory_format=layout) if one.ndim == _IMAGE_AXES else one for one in tensors],
        )

    expected, first_ns = _timed(run_of(model), sample, clock_ns)
    with torch.no_grad():
        last = replace(model, module=module.to(memory_format=torch.channels_last), apply=applied)
        try:
            outputs, last_ns = _timed(run_of(last), sample, clock_ns)
            if float_difference(outputs, expected) <= TOLERANCE and last_ns < _FASTER * first_ns:
                return last, f"channels last ({last_ns / 1e6:.2f} ms; first {first_ns / 1e6:.2f} ms)"
        except Exception as error:  # noqa: BLE001  # a view that another layout does not have
            logger.debug("%s: with channels last: %s", name, error)
        model.module = module.to(memory_format=torch.contiguous_format)
    return model, ""


def _timed(run: Run, feeds: Feeds, clock_ns: Callable[[], int]) -> tuple[Mapping[str, np.ndarray], int]:
    """The outputs of a batch, and the shorter of two times in ns after a first run."""
    outputs = run(feeds)
    times_ns = []
    for _ in range(_RUNS):
        begun_ns = clock_ns()
        run(feeds)
        times_ns.append(clock_ns() - begun_ns)
    return outputs, min(times_ns)


# Compilation.


def compile_module(
    torch: Any, name: str, run_of: RunOf, requests: Sequence[Feeds], model: TorchModel
) -> TorchModel:
    """Compile a model by torch.compile and run the sizes that are likely to come; others run uncompiled from then on.

    Args:
        requests: Requests that the model answers, of all these sizes.

    Raises:
        LoadFailed: The model cannot be compiled, or gives other answers then.
    """
    if not isinstance(model.module, torch.nn.Module) or isinstance(model.module, torch.jit.ScriptModule):
        raise LoadFailed(
            f"{name}: compile is for programs of torch.export.save and weights with a model_class: leave it out"
        )
    expected = [run_of(model)(feeds) for feeds in requests]
    compiled = replace(model, module=torch.compile(model.module, dynamic=True))
    try:
        difference = max(
            float_difference(run_of(compiled)(feeds), outputs)
            for feeds, outputs in zip(requests, expected, strict=True)
        )
    except Exception as error:
        raise LoadFailed(f"{name} cannot be compiled: {in_one_line(error)}; leave compile out") from error
    if difference > TOLERANCE:
        raise LoadFailed(
            f"{name}: compiled it gives outputs that differ by {difference:.2g} of the largest one; leave compile out"
        )
    # No request may wait for a compiler.
    torch.compiler.set_stance("eager_on_recompile")
    return compiled
