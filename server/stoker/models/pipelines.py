"""Pipelines joined with the signatures of their models: the path of each tensor, and the signature for callers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from stoker.settings.pipeline_graph import Graph, Links
from stoker.settings.pipelines import Pipeline, Step
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec


class JoinedPipeline(Struct, frozen=True):
    """A pipeline that can run.

    Attributes:
        graph: The order of the steps.
        infos: For each step the declared inputs of its model, by their names.
    """

    pipeline: Pipeline
    graph: Graph
    links: tuple[Links, ...]
    infos: tuple[Mapping[str, TensorInfo], ...]
    models: tuple[Signature, ...]
    signature: Signature


def join(pipeline: Pipeline, models: Sequence[Signature]) -> JoinedPipeline:
    """Join a pipeline with the signatures of its models, in the order of its steps."""
    sides = [_tensors(pipeline, step, model) for step, model in zip(pipeline.steps, models, strict=True)]
    links = tuple(_links(pipeline, step, side) for step, side in zip(pipeline.steps, sides, strict=True))
    graph = Graph.of(pipeline, links)
    infos = tuple({info.name: info for info in side.inputs} for side in sides)
    inputs, outputs = _ends(pipeline, graph, links, sides)
    signature = _signature(pipeline, models, inputs, outputs, batched=all(side.batched for side in sides))
    return JoinedPipeline(pipeline, graph, links, infos, tuple(models), signature)


def _tensors(pipeline: Pipeline, step: Step, model: Signature) -> ModelTensors:
    tensors = model.model_tensors
    if tensors is None:
        raise pipeline.wrong(
            f"{step.name} is an entry script that takes whole requests, not tensors; decorate its run with "
            "stoker.batched, so that it takes and gives arrays"
        )
    return tensors


def _links(pipeline: Pipeline, step: Step, tensors: ModelTensors) -> Links:
    inputs, outputs = [info.name for info in tensors.inputs], [info.name for info in tensors.outputs]
    takes = {name: name for name in inputs} if step.inputs is None else step.inputs
    gives = {name: name for name in outputs} if step.outputs is None else step.outputs
    for named, known, side in ((takes, inputs, "input"), (gives, outputs, "output")):
        unknown = next((name for name in named if name not in known), None)
        if unknown is not None:
            raise pipeline.wrong(f"{step.name} has no {side} {unknown!r}; it has: {', '.join(known)}")
    missing = next((name for name in inputs if name not in takes), None)
    if missing is not None:
        raise pipeline.wrong(f"the input {missing!r} of {step.name} has no tensor; name its tensor")
    return Links(takes, gives)


def _ends(
    pipeline: Pipeline, graph: Graph, links: Sequence[Links], sides: Sequence[ModelTensors]
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Return the tensors that callers send and receive; raises if an output does not fit the input of a step."""
    known: dict[str, tuple[TensorInfo, str]] = {}
    for step, link, side in zip(pipeline.steps, links, sides, strict=True):
        for info in side.outputs:
            if info.name in link.gives:
                known[link.gives[info.name]] = (info, f"{step.name} gives {info}")
    for step, link, side in zip(pipeline.steps, links, sides, strict=True):
        for info in side.inputs:
            tensor = link.takes[info.name]
            source, text = known.setdefault(tensor, (info, f"{step.name} takes {info}"))
            if not _fits(source, info):
                raise pipeline.wrong(
                    f"the tensor {tensor!r} does not fit: {text}, and {step.name} takes {info}"
                )
            if tensor in graph.inputs:
                known[tensor] = (_narrower(source, info), text)
    inputs, outputs = (
        tuple(dataclasses.replace(known[tensor][0], name=tensor) for tensor in tensors)
        for tensors in (graph.inputs, graph.outputs)
    )
    return inputs, outputs


def _fits(given: TensorInfo, taken: TensorInfo) -> bool:
    """Whether an array can be both."""
    if given.dtype != taken.dtype:
        return False
    if given.any_rank or taken.any_rank:
        return True
    return len(given.shape) == len(taken.shape) and all(
        one == other or -1 in (one, other) for one, other in zip(given.shape, taken.shape, strict=True)
    )


def _narrower(one: TensorInfo, other: TensorInfo) -> TensorInfo:
    """Return the tensors that both accept: a fixed size wins over a free one."""
    if one.any_rank:
        return other
    if other.any_rank:
        return one
    sizes = tuple(max(pair) for pair in zip(one.shape, other.shape, strict=True))
    return dataclasses.replace(one, shape=sizes)


_TEXTS_BYTES: Final = 1 << 30


def _signature(
    pipeline: Pipeline,
    models: Sequence[Signature],
    inputs: tuple[TensorInfo, ...],
    outputs: tuple[TensorInfo, ...],
    *,
    batched: bool,
) -> Signature:
    sequences = any(model.sequences for model in models)
    if any(model.takes != "rows" or model.callers is not None for model in models):
        # A row of each of these models has room for a whole request, but for those that take texts.
        rooms = (spec.shape[0] for model in models for spec in model.inputs if spec.variable)
        size_bytes = max(rooms, default=_TEXTS_BYTES)
        row = (TensorSpec("tensors", "uint8", (size_bytes,), variable=True),)
        return Signature(row, row, "tensors", tensors=ModelTensors(inputs, outputs, batched, sequences))
    texts = [info.name for info in outputs if info.dtype == "string"]
    if texts and len(outputs) > 1:
        raise pipeline.wrong(
            f"the output {texts[0]!r} is JSON that a script writes, and has to be the only output; leave the others "
            "out, or let the script give an array"
        )
    given = (_text(texts[0], models),) if texts else _specs(outputs)
    return Signature(_specs(inputs), given, sequences=sequences)


def _specs(infos: Sequence[TensorInfo]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(info.name, info.dtype, info.shape[1:], labels=info.labels, as_objects=info.as_objects)
        for info in infos
    )


def _text(name: str, models: Sequence[Signature]) -> TensorSpec:
    """Return the rows of an output of texts, as large as the largest variable output of the models."""
    rooms = [spec.shape[0] for model in models for spec in model.outputs if spec.variable]
    return TensorSpec(name, "uint8", (max(rooms),), variable=True)
