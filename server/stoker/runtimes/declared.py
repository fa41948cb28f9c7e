"""A model as its operator's configuration declares it: checked against the model, and reshaped for callers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from stoker.declaration import Declaration, DeclaredTensor
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.packed import Feeds, Run
from stoker.tensors import ModelTensors, TensorInfo

__all__ = ["as_declared", "is_reshaped"]


def as_declared(declaration: Declaration | None, run: Run, tensors: ModelTensors) -> tuple[Run, ModelTensors]:
    """Let a model look as it is declared.

    A fixed size of an input that the model leaves free is fixed from now on; outputs that are not declared are left
    out; tensors whose shape is declared to be another one than the model's are reshaped on their way.

    Args:
        declaration: What is declared; None for nothing.
        run: The model as a function of named tensors.
        tensors: What it takes and gives by itself.

    Raises:
        LoadFailed: The model is another one than the declared; the message says in what.
    """
    if declaration is None:
        return run, tensors
    source = declaration.source
    inputs = _declared(source, "input", declaration.inputs, tensors.inputs)
    outputs = _declared(source, "output", declaration.outputs, tensors.outputs)
    missing = [info.name for info in tensors.inputs if info.name not in {one.name for one in inputs}]
    if missing:
        raise LoadFailed(f"{source}: the model's input {missing[0]!r} is missing there; add it")
    batched = tensors.batched and declaration.batched is not False
    shown = dataclasses.replace(tensors, inputs=inputs, outputs=outputs, batched=batched)
    ways_in = {one.name: one for one in declaration.inputs if one.model_shape is not None}
    ways_out = {one.name: one for one in declaration.outputs if one.model_shape is not None}
    names = [info.name for info in outputs]

    def reshaped(feeds: Feeds) -> Mapping[str, np.ndarray]:
        taken = {name: _into_model(ways_in.get(name), array) for name, array in feeds.items()}
        results = run(taken)
        return {name: _out_of_model(ways_out.get(name), results[name]) for name in names}

    changed = ways_in or ways_out or len(names) < len(tensors.outputs)
    return (reshaped if changed else run), shown


def is_reshaped(declaration: Declaration | None) -> bool:
    """Whether callers see tensors in other shapes than the model: then only `run` of `as_declared` serves them."""
    return declaration is not None and any(
        one.model_shape is not None for one in (*declaration.inputs, *declaration.outputs)
    )


def _declared(
    source: str, side: str, declared: Sequence[DeclaredTensor], there: Sequence[TensorInfo]
) -> tuple[TensorInfo, ...]:
    """The tensors of one side as callers see them, in the model's order."""
    infos = {info.name: info for info in there}
    for one in declared:
        info = infos.get(one.name)
        if info is None:
            names = ", ".join(infos)
            raise LoadFailed(
                f"{source}: the model has no {side} {one.name!r}; its {side}s are {names}; correct the name"
            )
        in_model = one.shape if one.model_shape is None else one.model_shape
        if one.dtype != info.dtype or not (info.any_rank or _compatible(in_model, info.shape)):
            given = TensorInfo(one.name, one.dtype, in_model)
            raise LoadFailed(f"{source}: the {side} {given} is {info} in the model; correct it there")
    if not declared:
        return tuple(there)
    by_name = {one.name: one for one in declared}
    return tuple(_shown(side, by_name[info.name], info) for info in there if info.name in by_name)


def _compatible(declared: tuple[int, ...], model: tuple[int, ...]) -> bool:
    return len(declared) == len(model) and all(
        -1 in (one, other) or one == other for one, other in zip(declared, model, strict=True)
    )


def _shown(side: str, declared: DeclaredTensor, info: TensorInfo) -> TensorInfo:
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


def _into_model(way: DeclaredTensor | None, array: np.ndarray) -> np.ndarray:
    if way is None or way.model_shape is None:
        return array
    return _reshape(way.name, array, way.shape, way.model_shape)


def _out_of_model(way: DeclaredTensor | None, array: np.ndarray) -> np.ndarray:
    if way is None or way.model_shape is None:
        return array
    return _reshape(way.name, array, way.model_shape, way.shape)


def _reshape(name: str, array: np.ndarray, now: tuple[int, ...], then: tuple[int, ...]) -> np.ndarray:
    """Reshape an array; free sizes keep their order, as Triton has it."""
    free = [size for size, declared in zip(array.shape, now, strict=False) if declared < 0]
    if len(free) == sum(size < 0 for size in then):
        sizes = iter(free)
        then = tuple(next(sizes) if size < 0 else size for size in then)
    try:
        return array.reshape(then)
    except ValueError:
        raise InvalidInput(
            f"{name}: sizes {list(array.shape)} cannot become {list(then)}, as its configuration says"
        ) from None
