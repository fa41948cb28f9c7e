"""Which parameters the children of a sweep get: a pure function of the space, the seed and the child's number.

So nothing has to be remembered: a sweep that was killed asks for the missing children, and gets what they would have
had.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_runs.tuning.spaces import Expression, Space, Value, checked_space, drawn

__all__ = ["GRID", "RANDOM", "Sampler", "new_seed", "sampler"]

RANDOM: Final = "random"
GRID: Final = "grid"
_BAYESIAN: Final = "bayesian"
_GRID_LIMIT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Sampler:
    """A way to choose, and from what; made by `sampler`, which checks it.

    Attributes:
        kind: `random` or `grid`.
        space: The parameters.
        seed: What a random one begins with.
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
        """Return the parameters of a child.

        Args:
            number: Which child, from 0 up; of a grid below `size`.
        """
        if self.kind == RANDOM:
            # A text is hashed by the same function in every Python.
            chance = Random(f"{self.seed}/{number}")  # noqa: S311  # nothing here is secret
            return {name: drawn(one, chance) for name, one in self.space.items()}
        chosen: dict[str, Value] = {}
        # As nested loops: the last parameter changes first.
        for name, one in reversed(list(self.space.items())):
            number, place = divmod(number, len(one.arguments))
            chosen[name] = one.arguments[place]
        return {name: chosen[name] for name in self.space}

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        space = {name: one.to_json() for name, one in self.space.items()}
        return {"kind": self.kind, "space": space, "seed": self.seed}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Sampler:
        """Read what `to_json` has written."""
        space = {str(name): Expression.from_json(one) for name, one in content["space"].items()}
        return cls(str(content["kind"]), space, int(content["seed"]))


def new_seed() -> int:
    """A seed by chance, for a sweep that names none."""
    return int.from_bytes(os.urandom(6))


def sampler(kind: str, space: Mapping[str, Any], seed: int = 0) -> Sampler:
    """Return a way to choose.

    Args:
        kind: `random` or `grid`, in any case.
        space: The expression of each parameter.
        seed: What a random one begins with.

    Raises:
        InvalidSettings: There is no such way, or it cannot choose from this space.
    """
    known = checked_space(space)
    lower = kind.lower()
    if lower == _BAYESIAN:
        raise InvalidSettings(
            "bayesian sampling is not offered: take random, with a policy that ends poor runs early, or grid"
        )
    if lower not in (RANDOM, GRID):
        raise InvalidSettings(f"there is no sampling {kind!r}; there are random and grid")
    found = Sampler(lower, known, seed)
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
