"""An operator of a TensorFlow graph applied to inputs of known states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from stoker.isolation.tensorflow.row_states import Mixed, Plain, Rows, State, Unknown, node_of


class _Lost(Exception):
    """The rows of an operator's outputs are mixed or unknown."""

    def __init__(self, state: Mixed | Unknown) -> None:
        self.state = state


class Call(Struct, frozen=True):
    """An operator and the states of its inputs. If an input is not as a rule expects, its outputs are unknown."""

    op: Any
    states: Sequence[State]

    def undecided(self) -> NoReturn:
        """End the rule: it is unknown how the outputs depend on the rows."""
        raise _Lost(Unknown(node_of(self.op)))

    def mixed(self) -> NoReturn:
        """End the rule: the operator joins rows."""
        raise _Lost(Mixed(node_of(self.op)))

    def rows(self, index: int = 0) -> Rows:
        """An input with rows."""
        state = self.states[index]
        return state if isinstance(state, Rows) else self.undecided()

    def first_rows(self, index: int = 0) -> Rows:
        """An input with rows along its first axis."""
        rows = self.rows(index)
        return self.undecided() if rows.axis else rows

    def plain(self, index: int) -> Plain:
        """An input that does not depend on the contents of rows."""
        state = self.states[index]
        return state if isinstance(state, Plain) else self.undecided()

    def fixed(self, index: int) -> Plain:
        """An input that is the same in all batches."""
        plain = self.plain(index)
        return self.undecided() if plain.varies else plain

    def check_others_fixed(self) -> None:
        """Check that all inputs but the first are the same in all batches."""
        for index in range(1, len(self.states)):
            self.fixed(index)

    def check_same_for_all(self, index: int, place: int) -> None:
        """Check that an input is the same for each row; `place` is the batch axis counted from the last."""
        self.fixed(index)
        # Any size other than 1 would give each position in the batch another value.
        if self.rank(index) >= place and self.op.inputs[index].shape.as_list()[-place] != 1:
            self.undecided()

    def numbers(self, index: int) -> tuple[Any, ...]:
        """The known integers of an input."""
        numbers = self.plain(index).numbers
        return self.undecided() if numbers is None else numbers

    def integer(self, index: int) -> int:
        """The first integer of an input."""
        first = next(iter(self.numbers(index)), None)
        return first if isinstance(first, int) else self.undecided()

    def rank(self, index: int = 0) -> int:
        """The number of axes of an input."""
        rank: int | None = self.op.inputs[index].shape.rank
        return self.undecided() if rank is None else rank

    @property
    def output_rank(self) -> int:
        """The number of axes of the first output."""
        rank: int | None = self.op.outputs[0].shape.rank
        return self.undecided() if rank is None else rank

    @property
    def are_exact(self) -> bool:
        """Whether all inputs with rows have one index for each row."""
        return all(state.exact for state in self.states if isinstance(state, Rows))


Rule = Callable[[Call], State | list[State]]
"""The states of an operator's outputs, or one state for all of them, for the states of its inputs."""


def apply_rule(rule: Rule, op: Any, states: Sequence[State]) -> State | list[State]:
    """Return the states of an operator's outputs by its rule."""
    try:
        return rule(Call(op, states))
    except _Lost as lost:
        return lost.state
