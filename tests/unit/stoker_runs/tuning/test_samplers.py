"""Samplers: parameters are a pure function of space, seed and number."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidSettings
from stoker_runs.tuning.definition import (
    ContinuedChild,
    Sampler,
    SweepDefinition,
    arguments_of,
    define_sweep,
    expression,
    sampler,
)

SPACE = {"--rate": expression("loguniform", -6, -1), "--units": expression("choice", 16, 32)}


@given(st.integers(0, 2**62), st.integers(0, 1000))
def test_a_child_has_the_same_parameters_after_any_restart(seed: int, number: int) -> None:
    """In any order, after any restart, and through JSON."""
    one = sampler("random", SPACE, seed)
    again = Sampler.from_json(one.to_json())
    assert again.parameters(number) == one.parameters(number)
    assert list(one.parameters(number)) == list(SPACE)


def test_seeds_and_numbers_give_other_parameters() -> None:
    """Each release draws the same values: the first numbers of a seed are written here."""
    draw_value = {
        sampler("random", SPACE, seed).parameters(number)["--rate"] for seed in (0, 1) for number in range(5)
    }
    assert len(draw_value) == 10
    assert sampler("RANDOM", {"--n": expression("randint", 1000)}, 7).parameters(0) == {"--n": 722}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_grid_has_each_combination_once(sizes: list[int]) -> None:
    """In the order of nested loops, the last parameter first."""
    space = {f"--p{place}": expression("choice", *range(size)) for place, size in enumerate(sizes)}
    one = sampler("grid", space)
    assert one.size is not None
    found = [tuple(one.parameters(number).values()) for number in range(one.size)]
    assert found == list(itertools.product(*map(range, sizes)))


@pytest.mark.parametrize(
    ("kind", "space", "words"),
    [
        ("bayesian", {"--n": expression("normal", 0, 1)}, "--n: bayesian sampling chooses between bounds"),
        ("randum", SPACE, "there is no sampling 'randum'; did you mean random?"),
        ("grid", SPACE, "--rate: a grid has every combination"),
        (
            "grid",
            {f"--p{place}": expression("choice", *range(10)) for place in range(7)},
            "10,000,000 combinations",
        ),
    ],
)
def test_a_sampling_that_cannot_be_is_refused(kind: str, space: dict[str, object], words: str) -> None:
    """With what there is instead."""
    with pytest.raises(InvalidSettings, match=words):
        sampler(kind, space)


def test_terms_are_kept_whole() -> None:
    """Through JSON; those that go on come first, and a grid ends with its last combination."""
    grid = sampler("grid", {"--units": expression("choice", 16, 32)})
    one = define_sweep(
        grid,
        "acc",
        "MAXIMIZE",
        8,
        warm_start=["s"],
        again=[ContinuedChild("s_0", {"--units": 64})],
        max_duration_s=9,
    )
    assert SweepDefinition.from_json(one.to_json()) == one
    assert (one.total, one.at_once) == (3, 8)
    assert [one.parameters(number)["--units"] for number in range(3)] == [64, 16, 32]
    assert [one.resumes(number) for number in range(2)] == ["s_0", ""]
    assert arguments_of({"-a": 1, "rate": 0.5, "--x": True}) == ["-a", "1", "--rate", "0.5", "--x", "True"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metric": ""}, "name of a metric"),
        ({"goal": "more"}, "maximize or minimize"),
        ({"max_runs": 0}, "from 1 to 100,000, and is 0"),
        ({"at_once": True}, "runs at once"),
        ({"max_duration_s": 0}, "more than 0 s"),
        (
            {"again": [ContinuedChild("s_0", {}), ContinuedChild("s_1", {})]},
            "2 runs are to go on, and the sweep may have 1",
        ),
    ],
)
def test_terms_that_cannot_be_are_refused(more: dict[str, object], words: str) -> None:
    """Before anything is written."""
    given_terms: dict[str, object] = {"metric": "acc", "goal": "maximize", "max_runs": 1, **more}
    with pytest.raises(InvalidSettings, match=words):
        define_sweep(sampler("random", SPACE), **given_terms)  # type: ignore[arg-type]
