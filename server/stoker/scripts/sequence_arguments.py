"""The arguments of `run` that come from its sequence: the state, the id, whether the request starts or ends it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Final

from stoker.errors import LoadFailed
from stoker.scripts.forms import parameters_of

STATE: Final = "state"
"""The argument of `run` for the state of a request's sequence."""
STATES: Final = "states"
"""The argument of `run` for the states of the rows' sequences."""
STARTS: Final = "sequence_start"
ENDS: Final = "sequence_end"
ID: Final = "sequence_id"


class StateNotCopied(RuntimeError):
    """The state of a sequence holds an object that cannot be copied."""


def sequence_arguments(run: Callable[..., Any], state: str) -> frozenset[str]:
    """Return the arguments that a script with state gets beside its data."""
    takes = parameters_of(run)
    if state not in takes:
        data = "data, states" if state == STATES else "raw_data, state"
        raise LoadFailed(
            f"run() has no argument {state!r}, and the model is to keep state for sequences: write run({data}), or "
            "leave sequence out of its settings"
        )
    return frozenset({state, STARTS, ENDS, ID} & takes.keys())


def refuse_states(run: Callable[..., Any]) -> None:
    """Raise LoadFailed for a `run` that takes rows and states if its deployment keeps no state."""
    taken = parameters_of(run).get(STATES)
    if taken is not None and taken.default is inspect.Parameter.empty:
        raise LoadFailed(
            f"run() has an argument {STATES!r}, and the model keeps no state: give it the setting sequence: {{}}"
        )


def copy_state(state: dict[Any, Any] | None) -> dict[Any, Any]:
    """Return a copy of a state, which `run` may change; a new sequence has an empty one.

    Raises:
        StateNotCopied: The state holds an object that cannot be copied.
    """
    try:
        return {} if state is None else copy.deepcopy(state)
    except Exception as error:
        raise StateNotCopied(
            f"the state of the sequence holds what cannot be copied: {error!r}; begin the sequence anew, and keep "
            "only data in its state"
        ) from error
