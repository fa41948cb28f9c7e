"""Spaces: the values that each expression may draw, as Azure defines it, and refusals."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidSettings
from stoker_runs.tuning.definition import KINDS, Expression, between, checked_space, draw_value, expression

DRAWS = 400


def many(one: Expression) -> list[float]:
    chance = Random(7)
    return [float(draw_value(one, chance)) for _ in range(DRAWS)]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers())
def test_uniform_lies_between_its_bounds(low: float, width: float, seed: int) -> None:
    """Both bounds are included, as floating-point numbers may round to them."""
    value = draw_value(expression("uniform", low, low + width), Random(seed))
    assert low <= float(value) <= low + width


@given(st.floats(-20, 20), st.floats(0.1, 10), st.integers())
def test_loguniform_has_exponents(low: float, width: float, seed: int) -> None:
    """Azure's arguments: e to the power of them are the bounds."""
    value = draw_value(expression("loguniform", low, low + width), Random(seed))
    assert math.exp(low) * 0.999 <= float(value) <= math.exp(low + width) * 1.001


@pytest.mark.parametrize(
    ("one", "low", "high", "step"),
    [
        (expression("quniform", 0, 1, 0.1), 0.0, 1.0, 0.1),
        (expression("quniform", -5, 5, 2), -4.0, 4.0, 2.0),
        (expression("qloguniform", 0, 3, 1), 1.0, 20.0, 1.0),
        (expression("qnormal", 10, 2, 0.5), 0.0, 20.0, 0.5),
        (expression("qlognormal", 0, 1, 1), 0.0, 100.0, 1.0),
    ],
    ids=str,
)
def test_quantized_expression_draws_multiples_of_its_step(
    one: Expression, low: float, high: float, step: float
) -> None:
    """Each value is an exact multiple of the step, and the values differ."""
    values = many(one)
    assert low <= min(values) < max(values) <= high
    assert all(value == float(f"{round(value / step) * step:.12g}") for value in values)
    assert 0.30000000000000004 not in values


def test_normal_and_lognormal_have_their_middle() -> None:
    """The median of one is mu, that of the other e to the power of mu."""
    normal, lognormal = (
        sorted(many(expression("normal", 5, 2))),
        sorted(many(expression("lognormal", 1, 0.5))),
    )
    assert normal[DRAWS // 2] == pytest.approx(5, abs=0.5)
    assert lognormal[DRAWS // 2] == pytest.approx(math.e, abs=0.4)
    assert lognormal[0] > 0
    assert set(many(expression("normal", 3, 0))) == {3.0}


def test_choice_and_randint_draw_all_that_there_is() -> None:
    """A choice has the entries of its list or range; randint leaves its bound out."""
    assert expression("choice", [1, 2]) == expression("choice", 1, 2)
    assert expression("choice", range(3)).arguments == (0, 1, 2)
    assert set(many(expression("choice", 1, 5))) == {1.0, 5.0}
    assert set(many(expression("randint", 3))) == {0.0, 1.0, 2.0}
    assert draw_value(expression("choice", "adam"), Random(0)) == "adam"


@pytest.mark.parametrize("kind", KINDS)
def test_expressions_are_kept_as_azure_writes_them(kind: str) -> None:
    """Name and arguments, through JSON and back."""
    count = 1 if kind in ("choice", "randint") else 3 if kind.startswith("q") else 2
    one = expression(kind, *(1, 2, 0.5)[:count])
    assert one.to_json()[0] == kind
    assert Expression.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("loguniforn", (1, 2), "did you mean loguniform"),
        ("x", (), "there are choice, randint"),
        ("choice", (), "nothing to choose from"),
        ("choice", ([[1]],), "neither"),
        ("choice", ({"a": 1},), "one parameter for each part"),
        ("choice", (math.nan,), "neither"),
        ("uniform", (1,), "uniform takes 2 numbers, and has 1"),
        ("uniform", (2, 1), "uniform: the lower bound 2 has to be below the upper one, 1"),
        ("uniform", ("a", 1), "finite numbers"),
        ("quniform", (0, 1, 0), "the step 0 has to be above 0"),
        ("normal", (0, -1), "cannot be below 0"),
        ("loguniform", (0, 1000), "too large a number"),
        ("lognormal", (0, 100), "too large a number"),
        ("randint", (0,), "whole number above 0"),
        ("randint", (1.5,), "whole number above 0"),
    ],
)
def test_invalid_expression_is_refused(kind: str, arguments: tuple[object, ...], words: str) -> None:
    """The error has the value, before anything runs."""
    with pytest.raises(InvalidSettings, match=words):
        expression(kind, *arguments)


def test_bounds_of_stokers_own_are_the_values() -> None:
    """Values are drawn between the bounds that users of Stoker write; 0 has no logarithm."""
    values = many(between("loguniform", 1e-4, 1e-1))
    assert 1e-4 <= min(values) < 1e-3 < 1e-2 < max(values) <= 1e-1
    assert between("qloguniform", 1, 8, 1).arguments[2] == 1
    with pytest.raises(InvalidSettings, match="the bound 0 has to be a number above 0"):
        between("loguniform", 0, 1)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "no parameters"),
        ({"a b": expression("randint", 2)}, "name of a parameter"),
        ({"--a": 3}, "does not say"),
    ],
)
def test_a_space_has_names_and_expressions(space: dict[str, object], words: str) -> None:
    """The names become options of the script."""
    with pytest.raises(InvalidSettings, match=words):
        checked_space(space)
