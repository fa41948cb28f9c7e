"""Graphs of pipelines: order of steps, and refusals."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import InvalidSettings
from stoker.settings.pipeline_graph import Graph, Links, Progress
from stoker.settings.pipelines import Pipeline, Step

Maps = Mapping[str, tuple[list[str], list[str]]]


def graph(
    steps: Maps, inputs: tuple[str, ...] | None = None, outputs: tuple[str, ...] | None = None
) -> Graph:
    """The graph of steps that take and give tensors of these names."""
    pipeline = Pipeline("p", tuple(Step(name, name) for name in steps), inputs, outputs)
    links = [
        Links(
            {f"in{i}": tensor for i, tensor in enumerate(takes)}, {f"out{i}": t for i, t in enumerate(gives)}
        )
        for takes, gives in steps.values()
    ]
    return Graph.of(pipeline, links)


@st.composite
def acyclic(draw: st.DrawFn) -> Maps:
    """Steps in any order of writing that have no circle; each takes tensors of earlier ones or of the caller."""
    count = draw(st.integers(1, 8))
    made: list[str] = ["sent"]
    steps: dict[str, tuple[list[str], list[str]]] = {}
    for number in range(count):
        takes = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
        gives = [f"t{number}.{place}" for place in range(draw(st.integers(1, 2)))]
        steps[f"s{number}"] = (takes, gives)
        made += gives
    names = draw(st.permutations(list(steps)))
    return {name: steps[name] for name in names}


@settings(STEADY, max_examples=50)
@given(acyclic(), st.randoms(use_true_random=False))
def test_each_step_runs_once_and_behind_all_that_it_waits_for(steps: Maps, random: object) -> None:
    """For any order of ends, each step begins once, when all its inputs are there, and all steps run."""
    made = graph(steps)
    progress, there = Progress(made), set(made.inputs)
    begun, running = list(made.first), list(made.first)
    sides = list(steps.values())
    while running:
        step = running.pop(random.randrange(len(running)))  # type: ignore[attr-defined]
        takes, gives = sides[step]
        assert there.issuperset(takes)
        there.update(gives)
        ready = progress.finish(step)
        begun += ready
        running += ready
    assert sorted(begun) == list(range(len(steps)))
    assert progress.steps_left == 0
    assert there.issuperset(made.outputs)


@settings(STEADY, max_examples=30)
@given(acyclic())
def test_a_tensor_is_used_by_those_that_take_it_and_by_the_answer(steps: Maps) -> None:
    """Uses of a tensor count each step once, and the answer once."""
    made = graph(steps)
    for tensor, uses in made.uses.items():
        takers = sum(tensor in takes for takes, _ in steps.values())
        assert uses == takers + (tensor in made.outputs)
        assert uses >= (tensor in (*made.inputs, *made.outputs))


def test_inputs_and_outputs_default_to_unconnected_tensors() -> None:
    """Callers send and get the tensors at both ends that no step connects."""
    made = graph({"b": (["x", "y"], ["z"]), "a": (["image"], ["x", "w"])})
    assert (made.inputs, made.outputs) == (("y", "image"), ("z", "w"))
    assert (made.first, made.waits, made.followers) == ((1,), (1, 0), ((), (0,)))
    assert graph({"a": (["image"], ["x", "w"])}, outputs=("w",)).outputs == ("w",)


@pytest.mark.parametrize(
    ("steps", "inputs", "outputs", "message"),
    [
        ({"a": (["i"], ["x"]), "b": (["i"], ["x"])}, None, None, "the tensor 'x' is made by a and by b"),
        ({"a": (["i"], ["x", "x"])}, None, None, "the tensor 'x' is made twice by a"),
        ({"a": (["x"], ["x"])}, None, None, "wait for each other in a circle: a$"),
        (
            {"f": (["i"], ["k"]), "a": (["z", "k"], ["x"]), "b": (["x"], ["z"]), "c": (["z"], ["o"])},
            None,
            None,
            "wait for each other in a circle: a, b$",
        ),
        ({"a": (["i", "j"], ["x"])}, ("i",), None, "the tensor 'j', which is the input 'in1' of a, is made"),
        ({"a": (["i"], ["x"])}, ("i", "k"), None, "the input 'k' is taken by no step"),
        ({"a": (["i"], ["x"]), "b": (["x"], ["y"])}, ("i", "x"), None, "the input 'x' is made by a"),
        ({"a": (["i"], ["x"])}, None, ("y",), "the output 'y' is made by no step; there are: x"),
        ({"a": (["i"], ["x"])}, None, ("i",), "the output 'i' is made by no step"),
        ({"a": (["i"], ["x"]), "b": (["i"], ["y"])}, None, ("x",), "nothing that b gives is an output or is taken"),
    ],
)  # fmt: skip
def test_invalid_pipeline_graph_is_refused_in_one_sentence(
    steps: Maps, inputs: tuple[str, ...] | None, outputs: tuple[str, ...] | None, message: str
) -> None:
    """Each fault has a message that names the pipeline, the tensor and the steps."""
    with pytest.raises(InvalidSettings, match=f"^the pipeline p: .*{message}"):
        graph(steps, inputs, outputs)


@pytest.mark.parametrize("shape", ["chain", "fan", "reversed"])
def test_graph_of_many_steps_grows_with_its_tensors(shape: str) -> None:
    """20,000 steps in a row, side by side, or written from the last one on; work by pairs of steps would not end."""
    count = 20_000
    steps = {
        f"s{number}": (["t0" if shape == "fan" else f"t{number}"], [f"t{number + 1}"])
        for number in range(count)
    }
    if shape == "reversed":
        steps = dict(reversed(steps.items()))
    outputs = tuple(f"t{number + 1}" for number in range(count)) if shape == "fan" else (f"t{count}",)
    found = graph(steps, ("t0",), outputs)
    assert sum(map(len, found.followers)) == (0 if shape == "fan" else count - 1)
    assert sum(found.uses.values()) == count + len(outputs)


def test_circle_of_many_steps_is_named_in_short() -> None:
    """Steps before and behind the circle are no part of it, and a message names a few of many steps."""
    count = 20_000
    steps = {f"s{number}": ([f"t{number}"], [f"t{(number + 1) % count}"]) for number in range(count)}
    steps |= {"before": (["sent"], ["b"]), "behind": (["t5", "b"], ["c"])}
    with pytest.raises(InvalidSettings, match=r"circle: s0, s1, .* and 19990 others$"):
        graph(steps)
