"""The graph that the steps of a pipeline form by their tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.settings.pipelines import Pipeline

_MOST_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Links:
    """The tensors of one step.

    Attributes:
        takes: Tensors of the pipeline, by the names of the model's inputs.
        gives: Tensors of the pipeline, by the names of the model's outputs.
    """

    takes: Mapping[str, str]
    gives: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Graph:
    """The steps of a pipeline, by their places in it.

    Attributes:
        uses: How many steps take a tensor, and 1 more for an output of the pipeline.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    first: tuple[int, ...]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    uses: Mapping[str, int]

    @classmethod
    def of(cls, pipeline: Pipeline, links: Sequence[Links]) -> Graph:
        """Follow the tensors of a pipeline.

        Raises:
            InvalidSettings: A tensor is made twice or by nobody, steps wait for each other in a circle, or a step
                gives nothing that an answer needs.
        """
        makers = _makers(pipeline, links)
        awaited = [{makers[tensor] for tensor in link.takes.values() if tensor in makers} for link in links]
        followers = _followers(awaited)
        order = _order(pipeline, awaited, followers)
        inputs = _inputs(pipeline, links, makers)
        outputs = _outputs(pipeline, links, makers)
        _check_needed(pipeline, order, awaited, {makers[tensor] for tensor in outputs})
        steps = range(len(links))
        taken = Counter(tensor for link in links for tensor in set(link.takes.values()))
        taken.update(set(outputs))
        return cls(
            inputs,
            outputs,
            first=tuple(step for step in steps if not awaited[step]),
            waits=tuple(map(len, awaited)),
            followers=tuple(map(tuple, followers)),
            uses={tensor: taken[tensor] for tensor in dict.fromkeys((*inputs, *makers))},
        )


class Progress:
    """The progress of one request: which of its steps may begin."""

    __slots__ = ("_graph", "_waits", "steps_left")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._waits = list(graph.waits)
        self.steps_left = len(graph.waits)

    def finish(self, step: int) -> list[int]:
        """Record that a step is done, and return the steps that only waited for it."""
        self.steps_left -= 1
        ready = []
        for follower in self._graph.followers[step]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                ready.append(follower)
        return ready


def _makers(pipeline: Pipeline, links: Sequence[Links]) -> dict[str, int]:
    """By tensor the step that makes it."""
    makers: dict[str, int] = {}
    for number, link in enumerate(links):
        for tensor in link.gives.values():
            if tensor in makers:
                first, second = pipeline.steps[makers[tensor]].name, pipeline.steps[number].name
                by = "twice by" if first == second else f"by {first} and by"
                raise pipeline.wrong(f"the tensor {tensor!r} is made {by} {second}; give one another name")
            makers[tensor] = number
    return makers


def _inputs(pipeline: Pipeline, links: Sequence[Links], makers: Mapping[str, int]) -> tuple[str, ...]:
    missing = dict.fromkeys(
        tensor for link in links for tensor in link.takes.values() if tensor not in makers
    )
    if pipeline.inputs is None:
        return tuple(missing)
    named = frozenset(pipeline.inputs)
    for tensor in pipeline.inputs:
        if tensor in makers:
            maker = pipeline.steps[makers[tensor]].name
            raise pipeline.wrong(f"the input {tensor!r} is made by {maker}; callers cannot send it too")
        if tensor not in missing:
            raise pipeline.wrong(f"the input {tensor!r} is taken by no step; leave it out")
    for number, link in enumerate(links):
        for name, tensor in link.takes.items():
            if tensor in missing and tensor not in named:
                step = pipeline.steps[number].name
                raise pipeline.wrong(
                    f"the tensor {tensor!r}, which is the input {name!r} of {step}, is made by nobody; "
                    "add it to the inputs of the pipeline, or name one that is made"
                )
    return pipeline.inputs


def _outputs(pipeline: Pipeline, links: Sequence[Links], makers: Mapping[str, int]) -> tuple[str, ...]:
    if pipeline.outputs is None:
        taken = {tensor for link in links for tensor in link.takes.values()}
        left = tuple(tensor for tensor in makers if tensor not in taken)
        if not left:
            raise pipeline.wrong("each tensor is taken by a step; say which of them are outputs")
        return left
    for tensor in pipeline.outputs:
        if tensor not in makers:
            raise pipeline.wrong(f"the output {tensor!r} is made by no step; there are: {', '.join(makers)}")
    return pipeline.outputs


def _followers(awaited: Sequence[set[int]]) -> list[list[int]]:
    """Return by step the steps that wait for it, ascending."""
    followers: list[list[int]] = [[] for _ in awaited]
    for step, before in enumerate(awaited):
        for other in before:
            followers[other].append(step)
    return followers


def _order(pipeline: Pipeline, awaited: Sequence[set[int]], followers: Sequence[Sequence[int]]) -> list[int]:
    """Sort the steps so that each follows those that it waits for (Kahn's algorithm)."""
    waits = [len(before) for before in awaited]
    order = _peel(waits, followers)
    if len(order) < len(awaited):
        # Steps that only follow those of a circle are no part of it: peel these from the other end.
        followed = [len(after) for after in followers]
        left = set(range(len(awaited))).difference(order, _peel(followed, awaited))
        names = ", ".join(pipeline.steps[step].name for step in sorted(left)[:_MOST_SHOWN])
        others = f" and {len(left) - _MOST_SHOWN} others" if len(left) > _MOST_SHOWN else ""
        raise pipeline.wrong(f"these steps wait for each other in a circle: {names}{others}")
    return order


def _peel(waits: list[int], followers: Sequence[Collection[int]]) -> list[int]:
    """Return the steps that can begin, each behind those that it waits for; steps of circles are left out."""
    order = [step for step, count in enumerate(waits) if not count]
    for step in order:
        for follower in followers[step]:
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
    return order


def _check_needed(
    pipeline: Pipeline, order: Sequence[int], awaited: Sequence[set[int]], last: set[int]
) -> None:
    needed = set(last)
    for step in reversed(order):
        if step not in needed:
            name = pipeline.steps[step].name
            raise pipeline.wrong(f"nothing that {name} gives is an output or is taken; leave that step out")
        needed |= awaited[step]


def check_names(pipeline: Pipeline) -> None:
    """Check the graph, if all tensors are named, so that the models need not be known."""
    if pipeline.is_explicit:
        Graph.of(pipeline, [Links(step.inputs or {}, step.outputs or {}) for step in pipeline.steps])
