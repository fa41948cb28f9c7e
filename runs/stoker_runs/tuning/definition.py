"""The definition of a sweep: the values of parameters, their choice, the primary metric, and the limits.

In random sampling and in a grid the parameters of a child are a pure function of the space, the seed and its number.
So a sweep that was killed asks for the missing children again, and gets the parameters that they would have had. In
Bayesian sampling they follow from the other children (`stoker_runs.tuning.proposals`); the child's record has them.

Arguments of expressions are Azure's own: `loguniform(-6, -1)` lies between e⁻⁶ and e⁻¹. Users of Stoker write the
bounds themselves, which `between` converts.
Source of the definitions: azureml.train.hyperdrive.parameter_expressions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from random import Random
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.names import did_you_mean
from stoker.system.wording import format_count
from stoker_runs.records.serialization import Record
from stoker_runs.tuning.policies import Goal, NoTermination, Policy, read_goal

Value = str | int | float | bool
"""One value of a parameter, as it follows its name on a command line."""

_LARGEST_LOG: Final = 700.0
"""e to the power of more is no float64."""
_DIGITS: Final = 12


class Expression(Record, frozen=True, array_like=True):
    """One distribution; a file has it as Azure writes it: the name, then the list of arguments.

    Attributes:
        arguments: Its arguments; of `choice` the values.
    """

    kind: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        """The name and its arguments, with the bounds themselves where Azure has exponents."""
        arguments = list(self.arguments)
        if self.kind in ("loguniform", "qloguniform"):
            arguments[:2] = [float(f"{math.exp(float(bound)):.{_DIGITS}g}") for bound in arguments[:2]]
        return f"{self.kind}({', '.join(map(repr, arguments))})"


Space = Mapping[str, Expression]
"""The expression of each parameter, by its name on the command line."""


def _check_bounds(low: float, high: float) -> None:
    if not low < high:
        raise InvalidSettings(f"the lower bound {low:g} has to be below the upper one, {high:g}")


def _check_log_bounds(low: float, high: float) -> None:
    _check_bounds(low, high)
    _check_exponents(low, high)


def _check_spread(_mu: float, sigma: float) -> None:
    if sigma < 0:
        raise InvalidSettings(f"the standard deviation {sigma:g} cannot be below 0")


def _check_log_spread(mu: float, sigma: float) -> None:
    _check_spread(mu, sigma)
    # Ten standard deviations away is never drawn.
    _check_exponents(mu - 10 * sigma, mu + 10 * sigma)


def _check_step(q: float = 1.0) -> None:
    if q <= 0:
        raise InvalidSettings(f"the step {q:g} has to be above 0")


def _check_exponents(low: float, high: float) -> None:
    if max(abs(low), abs(high)) > _LARGEST_LOG:
        raise InvalidSettings(f"e to the power of {max(low, high):g} is too large a number")


def round_to_step(value: float, q: float) -> float:
    """Return the nearest multiple of `q`, without the last digits of the product."""
    return float(f"{round(value / q) * q:.{_DIGITS}g}")


_DRAWS: Final[Mapping[str, tuple[Callable[..., None], Callable[..., float]]]] = {
    "uniform": (_check_bounds, lambda chance, low, high: chance.uniform(low, high)),
    "loguniform": (_check_log_bounds, lambda chance, low, high: math.exp(chance.uniform(low, high))),
    "normal": (_check_spread, lambda chance, mu, sigma: chance.gauss(mu, sigma)),
    "lognormal": (_check_log_spread, lambda chance, mu, sigma: math.exp(chance.gauss(mu, sigma))),
}
"""The check and the draw of each distribution of two numbers; `qNAME` has a step besides."""
KINDS: Final = ("choice", "randint", *(prefix + name for name in _DRAWS for prefix in ("", "q")))
"""The names of all expressions."""


def expression(kind: str, *arguments: Any) -> Expression:
    """Return the expression of this name, checked.

    Args:
        arguments: Those of Azure's function of that name; a single list or range is what is in it.

    Raises:
        InvalidSettings: There is no such expression, or it cannot have these arguments.
    """
    if kind not in KINDS:
        raise InvalidSettings(f"there is no expression {kind!r}; {did_you_mean(kind, KINDS)}")
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple | range):
        arguments = tuple(arguments[0])
    if kind == "choice":
        return _choice(arguments)
    return _of_numbers(kind, arguments)


def _choice(values: Sequence[Any]) -> Expression:
    if not values:
        raise InvalidSettings("choice has nothing to choose from; name one value or more")
    for value in values:
        if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
            continue
        raise InvalidSettings(
            f"choice takes numbers and texts, and {value!r} is neither; write one parameter for each part of it"
        )
    return Expression("choice", tuple(values))


def _of_numbers(kind: str, arguments: Sequence[Any]) -> Expression:
    count = 1 if kind == "randint" else 3 if kind.startswith("q") else 2
    if len(arguments) != count:
        raise InvalidSettings(f"{kind} takes {format_count(count, 'number')}, and has {len(arguments)}")
    for value in arguments:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise InvalidSettings(f"{kind} takes finite numbers, and {value!r} is none")
    if kind == "randint":
        (upper,) = arguments
        if upper < 1 or int(upper) != upper:
            raise InvalidSettings(f"randint takes a whole number above 0, and {upper!r} is none")
        return Expression(kind, (int(upper),))
    try:
        _DRAWS[kind.removeprefix("q")][0](*arguments[:2])
        _check_step(*arguments[2:])
    except InvalidSettings as error:
        raise InvalidSettings(f"{kind}: {error}") from None
    return Expression(kind, tuple(arguments))


def between(kind: str, low: float, high: float, *more: Any) -> Expression:
    """Return `loguniform` or `qloguniform` between two values, which Azure's have as exponents.

    Raises:
        InvalidSettings: A bound is no number above 0, or the lower one is not below the upper one.
    """
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
            raise InvalidSettings(f"{kind}: the bound {bound!r} has to be a number above 0")
    return expression(kind, math.log(low), math.log(high), *more)


def draw_value(one: Expression, chance: Random) -> Value:
    """Draw one value.

    Args:
        chance: The random generator; the same seed gives the same value.
    """
    if one.kind == "choice":
        return one.arguments[chance.randrange(len(one.arguments))]
    if one.kind == "randint":
        return chance.randrange(int(one.arguments[0]))
    value = _DRAWS[one.kind.removeprefix("q")][1](chance, *one.arguments[:2])
    return round_to_step(value, float(one.arguments[2])) if one.kind.startswith("q") else value


def checked_space(space: Mapping[str, Any]) -> dict[str, Expression]:
    """Return a space whose names can be those of a script's options."""
    if not space:
        raise InvalidSettings(
            "no parameters are named; each needs a name, as --learning-rate, and what it may be"
        )
    for name, one in space.items():
        if not isinstance(name, str) or not name.strip("-") or any(map(str.isspace, name)):
            raise InvalidSettings(
                f"{name!r} cannot be the name of a parameter; write it as in --learning-rate"
            )
        if not isinstance(one, Expression):
            raise InvalidSettings(
                f"{name}: {one!r} does not say what it may be; write for instance choice(16, 32) or uniform(0, 1)"
            )
    return dict(space)


RANDOM: Final = "random"
GRID: Final = "grid"
BAYESIAN: Final = "bayesian"
_SAMPLINGS: Final = (RANDOM, GRID, BAYESIAN)
_NORMAL: Final = ("normal", "qnormal", "lognormal", "qlognormal")
_GRID_LIMIT: Final = 1_000_000


class Sampler(Record, frozen=True):
    """How parameters are chosen, and from which space; made by `sampler`, which checks it.

    Attributes:
        kind: `random`, `grid` or `bayesian`.
    """

    kind: str
    space: Space
    seed: int = 0

    @property
    def size(self) -> int | None:
        """How many combinations there are; None where there is no end of them."""
        if self.kind != GRID:
            return None
        return math.prod(len(one.arguments) for one in self.space.values())

    def parameters(self, number: int) -> dict[str, Value]:
        """Return the parameters of a child of a random sweep or a grid.

        Args:
            number: Which child, from 0 up; of a grid below `size`.
        """
        assert self.kind != BAYESIAN, "they follow from what the other children have logged"
        if self.kind == RANDOM:
            # A text is hashed by the same function in every Python.
            chance = Random(f"{self.seed}/{number}")  # noqa: S311  # nothing here is secret
            return {name: draw_value(one, chance) for name, one in self.space.items()}
        chosen: dict[str, Value] = {}
        # As nested loops: the last parameter changes first.
        for name, one in reversed(list(self.space.items())):
            number, place = divmod(number, len(one.arguments))
            chosen[name] = one.arguments[place]
        return {name: chosen[name] for name in self.space}


def new_seed() -> int:
    """Return a random seed, for a sweep without one."""
    return int.from_bytes(os.urandom(6))


def sampler(kind: str, space: Mapping[str, Any], seed: int = 0) -> Sampler:
    """Return a checked sampler.

    Args:
        kind: `random`, `grid` or `bayesian`, in any case.
        space: The expression of each parameter.
    """
    known = checked_space(space)
    lower = kind.lower()
    if lower not in _SAMPLINGS:
        raise InvalidSettings(f"there is no sampling {kind!r}; {did_you_mean(lower, _SAMPLINGS)}")
    found = Sampler(lower, known, seed)
    if lower == BAYESIAN:
        if find_spec("optuna") is None:
            raise InvalidSettings(
                "bayesian sampling needs Optuna, which is not installed: pip install optuna"
            )
        for name, one in known.items():
            if one.kind in _NORMAL:
                raise InvalidSettings(
                    f"{name}: bayesian sampling chooses between bounds, and {one.kind} has none; write "
                    "uniform(…) or loguniform(…), or take random sampling"
                )
    if lower == GRID:
        for name, one in known.items():
            if one.kind != "choice":
                raise InvalidSettings(
                    f"{name}: a grid has every combination of values, and {one.kind} has no end of them; write "
                    "choice(…), or take random sampling"
                )
        assert found.size is not None
        if found.size > _GRID_LIMIT:
            raise InvalidSettings(
                f"the grid has {found.size:,} combinations; take fewer values, or random sampling"
            )
    return found


_MOST_RUNS: Final = 100_000


class ContinuedChild(Record, frozen=True):
    """A child of an earlier sweep that goes on in this one.

    Attributes:
        run: Its id; the new child continues from its outputs.
        parameters: Its parameters, which the new child has too.
    """

    run: str
    parameters: Mapping[str, Value]


class SweepDefinition(Record, frozen=True):
    """One sweep; made by `define_sweep`, which checks it.

    Attributes:
        metric: The primary metric: what children are compared by.
        max_runs: How many children there are; of a grid no more than it has combinations.
        max_duration_s: Time limit after which running children are ended and no more start; None for no limit.
        warm_start: Ids of earlier sweeps, with whose children those of this one are compared.
        again: Children of earlier sweeps that continue, as the first ones of this sweep.
    """

    sampler: Sampler
    metric: str
    goal: Goal
    max_runs: int
    at_once: int
    policy: Policy = NoTermination()
    max_duration_s: float | None = None
    warm_start: tuple[str, ...] = ()
    again: tuple[ContinuedChild, ...] = ()

    @property
    def total(self) -> int:
        """How many children there will be."""
        size = self.sampler.size
        return self.max_runs if size is None else min(self.max_runs, size + len(self.again))

    def parameters(self, number: int) -> dict[str, Value]:
        """The parameters of a child, from 0 up; of a Bayesian sweep only those of a child that continues another."""
        if number < len(self.again):
            return dict(self.again[number].parameters)
        return self.sampler.parameters(number - len(self.again))

    def resumes(self, number: int) -> str:
        """Id of the run that a child goes on with; empty for none."""
        return self.again[number].run if number < len(self.again) else ""


def define_sweep(
    sampler: Sampler,
    metric: str,
    goal: Any,
    max_runs: int,
    at_once: int | None = None,
    policy: Policy | None = None,
    *,
    max_duration_s: float | None = None,
    warm_start: Sequence[str] = (),
    again: Sequence[ContinuedChild] = (),
) -> SweepDefinition:
    """Return the checked definition of a sweep.

    Args:
        goal: `maximize` or `minimize`, in any case.
        max_runs: How many children there may be.
        policy: Ends poor ones early; None ends none.
        again: Children of earlier sweeps that continue.
    """
    if not isinstance(metric, str) or not metric:
        raise InvalidSettings("the sweep needs the name of a metric that its script logs, to compare runs by")
    at_once = max_runs if at_once is None else at_once
    _check_numbers(max_runs, at_once, max_duration_s)
    if len(again) > max_runs:
        raise InvalidSettings(
            f"{len(again)} runs are to go on, and the sweep may have {max_runs}; allow it more"
        )
    return SweepDefinition(
        sampler,
        metric,
        read_goal(goal),
        max_runs,
        min(at_once, max_runs),
        policy if policy is not None else NoTermination(),
        max_duration_s,
        tuple(warm_start),
        tuple(again),
    )


def _check_numbers(max_runs: Any, at_once: Any, max_duration_s: float | None) -> None:
    for name, number in (("the number of runs", max_runs), ("the number of runs at once", at_once)):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST_RUNS:
            raise InvalidSettings(
                f"{name} has to be a whole number from 1 to {_MOST_RUNS:,}, and is {number!r}"
            )
    if max_duration_s is not None and max_duration_s <= 0:
        raise InvalidSettings("the longest duration of a sweep has to be more than 0 s")


def arguments_of(parameters: Mapping[str, Value]) -> list[str]:
    """The words of a command line that give a script its parameters; a name gets the dashes that it lacks."""
    words = []
    for name, value in parameters.items():
        words += [name if name.startswith("-") else f"--{name}", str(value)]
    return words
