"""A model of PyTorch in another precision: by converted weights, or by autocast.

Its answers are compared with those in float32, and too large a difference is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stoker.errors import LoadFailed
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.packed import Feeds
from stoker.runtimes.precision import compare_precision, describe_difference, is_converted
from stoker.runtimes.torch.model import RunOf, TorchModel, allow_tf32


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
    """Set the precision of a model: convert its weights or, if the answers differ too much, use autocast.

    Args:
        reopen: Loads the model again: a conversion cannot be undone.
        sample: A request that the model answers.
        model: The model as it was loaded; the caller must not use it any more.

    Returns:
        The model, and words for the log.

    Raises:
        LoadFailed: The answers differ too much from float32, or the model has only one precision.
    """
    with _full_float32(torch):
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
    for form in ("converted", "autocast"):
        if failures:
            model = reopen()
        try:
            candidate = (
                _convert(torch, model, dtype)
                if form == "converted"
                else _autocast(torch, model, device_kind, dtype)
            )
            difference = compare_precision(name, precision, run_of(candidate)(sample), expected)
        except Exception as error:  # noqa: BLE001  # a module may raise any error in another precision
            failures.append(f"{form}: {in_one_line(error)}")
        else:
            return candidate, f"{_in_words(precision, difference)}, {form}"
    raise LoadFailed(f"{name} cannot compute with precision: {precision}: {'; '.join(failures)}")


def _in_words(precision: str, difference: float) -> str:
    return f"precision {precision}, {describe_difference(difference, 'float32')}"


def _convert(torch: Any, model: TorchModel, dtype: Any) -> TorchModel:
    """Convert a module's float32 weights and constants in place; inputs and outputs of the model stay float32."""
    for part in model.module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _rewrite_types(torch, part, dtype)
    apply = model.apply

    def apply_converted(module: Any, tensors: list[Any]) -> Any:
        inputs = [tensor.to(dtype) if tensor.dtype == torch.float32 else tensor for tensor in tensors]
        return _widen(torch, apply(module, inputs), dtype)

    with torch.no_grad():
        return replace(model, module=model.module.to(dtype), apply=apply_converted)


def _rewrite_types(torch: Any, program: Any, dtype: Any) -> None:
    """Replace float32 by another type in the code of a program of torch.export."""

    def replaced(value: Any) -> Any:
        return dtype if value == torch.float32 else value

    _drop_type_checks(torch, program)
    for node in program.graph.nodes:
        node.args = tuple(map(replaced, node.args))
        node.kwargs = {key: replaced(value) for key, value in node.kwargs.items()}
    program.recompile()


def _drop_type_checks(torch: Any, program: Any) -> None:
    """Remove the assertions that tensors have the types with which a program was exported."""
    check = torch.ops.aten._assert_tensor_metadata.default  # noqa: SLF001  # torch.export has no other name for it
    for node in [node for node in program.graph.nodes if node.target is check]:
        program.graph.erase_node(node)
    program.recompile()


def _autocast(torch: Any, model: TorchModel, device_kind: str, dtype: Any) -> TorchModel:
    """Make products and convolutions compute in a type of 16 bits; weights stay float32."""
    for part in model.module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _drop_type_checks(torch, part)
    apply = model.apply

    def apply_casting(module: Any, tensors: list[Any]) -> Any:
        with torch.autocast(device_kind, dtype):
            return _widen(torch, apply(module, tensors), dtype)

    return replace(model, apply=apply_casting)


def _widen(torch: Any, result: Any, dtype: Any) -> Any:
    """Convert tensors of a type of 16 bits in a result to float32."""

    def widen(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == dtype else leaf

    return torch.utils._pytree.tree_map(widen, result)  # noqa: SLF001  # torch.export describes structures with it


@contextmanager
def _full_float32(torch: Any) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    allow_tf32(torch, allowed=False)
    try:
        yield
    finally:
        allow_tf32(torch, allowed=before)
