"""Tensors that an operator's configuration declares: they are checked against the model and applied to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from stoker.deployment import Declaration, DeclaredTensor
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.packed import Feeds, Run
from stoker.tensors import ModelTensors, TensorInfo

_Shape = tuple[int, ...]


def apply_declaration(
    declaration: Declaration | None, run: Run, tensors: ModelTensors
) -> tuple[Run, ModelTensors]:
    """Apply the tensors that the configuration declares to a model.

    A declared size fixes a free size of the model's input. Outputs that are not declared are left out. If a tensor
    declares another shape for callers than for the model, each request is reshaped.

    Raises:
        LoadFailed: The model does not have the declared tensors; the message names the difference.
    """
    if declaration is None:
        return run, tensors
    source = declaration.source
    inputs = _apply_to_side(source, "input", declaration.inputs, tensors.inputs)
    outputs = _apply_to_side(source, "output", declaration.outputs, tensors.outputs)
    missing = [info.name for info in tensors.inputs if info.name not in {one.name for one in inputs}]
    if missing:
        raise LoadFailed(f"{source}: the model's input {missing[0]!r} is missing there; add it")
    batched = tensors.batched and declaration.batched is not False
    applied = dataclasses.replace(tensors, inputs=inputs, outputs=outputs, batched=batched)
    into_model = {
        one.name: (one.shape, one.model_shape) for one in declaration.inputs if one.model_shape is not None
    }
    out_of_model = {
        one.name: (one.model_shape, one.shape) for one in declaration.outputs if one.model_shape is not None
    }
    names = [info.name for info in outputs]

    def run_reshaped(feeds: Feeds) -> Feeds:
        results = run(_reshape_all(feeds, into_model))
        return _reshape_all({name: results[name] for name in names}, out_of_model)

    is_changed = into_model or out_of_model or len(names) < len(tensors.outputs)
    return (run_reshaped if is_changed else run), applied


def is_reshaped(declaration: Declaration | None) -> bool:
    """Whether callers see other shapes than the model: then only `run` of `apply_declaration` serves them."""
    return declaration is not None and any(
        one.model_shape is not None for one in (*declaration.inputs, *declaration.outputs)
    )


def _apply_to_side(
    source: str, side: str, declared: Sequence[DeclaredTensor], in_model: Sequence[TensorInfo]
) -> tuple[TensorInfo, ...]:
    """Return the inputs, or the outputs, as callers see them, in the model's order."""
    infos = {info.name: info for info in in_model}
    for one in declared:
        info = infos.get(one.name)
        if info is None:
            names = ", ".join(infos)
            raise LoadFailed(
                f"{source}: the model has no {side} {one.name!r}; its {side}s are {names}; correct the name"
            )
        shape = one.shape if one.model_shape is None else one.model_shape
        if one.dtype != info.dtype or not (info.any_rank or _are_compatible(shape, info.shape)):
            wrong = TensorInfo(one.name, one.dtype, shape)
            raise LoadFailed(f"{source}: the {side} {wrong} is {info} in the model; correct it there")
    if not declared:
        return tuple(in_model)
    by_name = {one.name: one for one in declared}
    return tuple(_apply(side, by_name[info.name], info) for info in in_model if info.name in by_name)


def _are_compatible(declared: tuple[int, ...], model: tuple[int, ...]) -> bool:
    return len(declared) == len(model) and all(
        -1 in (one, other) or one == other for one, other in zip(declared, model, strict=True)
    )


def _apply(side: str, declared: DeclaredTensor, info: TensorInfo) -> TensorInfo:
    if declared.labels and not info.as_objects:
        info = dataclasses.replace(info, labels=declared.labels)
    if declared.model_shape is not None:
        return dataclasses.replace(info, shape=declared.shape)
    if side == "output":
        return info
    if info.any_rank:
        return dataclasses.replace(info, shape=declared.shape, any_rank=False)
    sizes = zip(declared.shape, info.shape, strict=True)
    return dataclasses.replace(info, shape=tuple(one if model < 0 else model for one, model in sizes))


def _reshape_all(feeds: Feeds, shapes: Mapping[str, tuple[_Shape, _Shape]]) -> Feeds:
    """Reshape tensors from the first of their shapes to the second."""
    return {
        name: _reshape(name, array, *shapes[name]) if name in shapes else array
        for name, array in feeds.items()
    }


def _reshape(name: str, array: np.ndarray, before: _Shape, after: _Shape) -> np.ndarray:
    """Reshape an array. Free sizes keep their order, as in Triton."""
    free = [size for size, declared in zip(array.shape, before, strict=False) if declared < 0]
    if len(free) == sum(size < 0 for size in after):
        sizes = iter(free)
        after = tuple(next(sizes) if size < 0 else size for size in after)
    try:
        return array.reshape(after)
    except ValueError:
        raise InvalidInput(
            f"{name}: sizes {list(array.shape)} cannot become {list(after)}, as its configuration says"
        ) from None
