"""What a parameter may be: an expression of Azure's, its check, and one draw from it.

Arguments are Azure's own: `loguniform(-6, -1)` lies between e⁻⁶ and e⁻¹. What users of Stoker write has the bounds
themselves, and `between` makes the one of the other.
Source of the definitions: azureml.train.hyperdrive.parameter_expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random
from typing import Any, Final

from stoker.errors import InvalidSettings

__all__ = ["KINDS", "Expression", "Space", "Value", "between", "checked_space", "drawn", "expression"]

Value = str | int | float | bool
"""One value of a parameter, as it follows its name on a command line."""

_LARGEST_LOG: Final = 700.0
"""e to the power of more is no float64."""
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Expression:
    """One distribution.

    Attributes:
        kind: One of `KINDS`.
        arguments: Its arguments; of `choice` the values.
    """

    kind: str
    arguments: tuple[Value, ...]

    def to_json(self) -> list[Any]:
        """Return it as Azure writes it: the name, then the list of arguments."""
        return [self.kind, list(self.arguments)]

    @classmethod
    def from_json(cls, content: Sequence[Any]) -> Expression:
        """Read what `to_json` has written."""
        kind, arguments = content
        return cls(str(kind), tuple(arguments))

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.arguments))})"


Space = Mapping[str, Expression]
"""The expression of each parameter, by its name on the command line."""


def _log_bounds(low: float, high: float) -> None:
    if max(abs(low), abs(high)) > _LARGEST_LOG:
        raise InvalidSettings(f"e to the power of {max(low, high):g} is too large a number")


def _bounds(low: float, high: float) -> None:
    if not low < high:
        raise InvalidSettings(f"the lower bound {low:g} has to be below the upper one, {high:g}")


def _step(q: float) -> None:
    if q <= 0:
        raise InvalidSettings(f"the step {q:g} has to be above 0")


def _spread(sigma: float) -> None:
    if sigma < 0:
        raise InvalidSettings(f"the standard deviation {sigma:g} cannot be below 0")


def _check_uniform(low: float, high: float, q: float = 1.0) -> None:
    _bounds(low, high)
    _step(q)


def _check_loguniform(low: float, high: float, q: float = 1.0) -> None:
    _check_uniform(low, high, q)
    _log_bounds(low, high)


def _check_normal(_mu: float, sigma: float, q: float = 1.0) -> None:
    _spread(sigma)
    _step(q)


def _check_lognormal(mu: float, sigma: float, q: float = 1.0) -> None:
    _check_normal(mu, sigma, q)
    # Ten standard deviations away is never drawn.
    _log_bounds(mu - 10 * sigma, mu + 10 * sigma)


def _in_steps(value: float, q: float) -> float:
    """The multiple of `q` that is nearest, without the last digits of the product."""
    return float(f"{round(value / q) * q:.{_DIGITS}g}")


_DRAWS: Final[Mapping[str, tuple[int, Callable[..., None], Callable[..., float]]]] = {
    "uniform": (2, _check_uniform, lambda chance, low, high: chance.uniform(low, high)),
    "quniform": (3, _check_uniform, lambda chance, low, high, q: _in_steps(chance.uniform(low, high), q)),
    "loguniform": (2, _check_loguniform, lambda chance, low, high: math.exp(chance.uniform(low, high))),
    "qloguniform": (
        3,
        _check_loguniform,
        lambda chance, low, high, q: _in_steps(math.exp(chance.uniform(low, high)), q),
    ),
    "normal": (2, _check_normal, lambda chance, mu, sigma: chance.gauss(mu, sigma)),
    "qnormal": (3, _check_normal, lambda chance, mu, sigma, q: _in_steps(chance.gauss(mu, sigma), q)),
    "lognormal": (2, _check_lognormal, lambda chance, mu, sigma: math.exp(chance.gauss(mu, sigma))),
    "qlognormal": (
        3,
        _check_lognormal,
        lambda chance, mu, sigma, q: _in_steps(math.exp(chance.gauss(mu, sigma)), q),
    ),
}

KINDS: Final = ("choice", "randint", *_DRAWS)
"""The names of all expressions."""


def expression(kind: str, *arguments: Any) -> Expression:
    """Return the expression of this name, checked.

    Args:
        kind: One of `KINDS`.
        arguments: Those of Azure's function of that name; a single list or range is what is in it.

    Raises:
        InvalidSettings: There is no such expression, or it cannot have these arguments.
    """
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
        raise InvalidSettings(f"there is no expression {kind!r}; {hint}")
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
    count = 1 if kind == "randint" else _DRAWS[kind][0]
    if len(arguments) != count:
        raise InvalidSettings(f"{kind} takes {count} number{'s' * (count != 1)}, and has {len(arguments)}")
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
        _DRAWS[kind][1](*arguments)
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


def drawn(one: Expression, chance: Random) -> Value:
    """Draw one value.

    Args:
        one: From what.
        chance: Where chance comes from; two that were made alike give the same.
    """
    if one.kind == "choice":
        return one.arguments[chance.randrange(len(one.arguments))]
    if one.kind == "randint":
        return chance.randrange(int(one.arguments[0]))
    return _DRAWS[one.kind][2](chance, *one.arguments)


def checked_space(space: Mapping[str, Any]) -> dict[str, Expression]:
    """Return a space whose names can be those of a script's options.

    Raises:
        InvalidSettings: It is empty, or a name or an expression is none.
    """
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
