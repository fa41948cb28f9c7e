"""What of the arguments of `run` is not in its request: the state of its sequence, and where in that it stands."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Final

from stoker.errors import LoadFailed
from stoker.scripts.forms import parameters_of

__all__ = [
    "ENDS",
    "ID",
    "STARTS",
    "STATE",
    "STATES",
    "StateNotCopied",
    "copied",
    "refuse_states",
    "sequence_arguments",
]

STATE: Final = "state"
"""What a `run` that takes a request calls the state of its sequence."""
STATES: Final = "states"
"""What a `run` that takes rows calls the states of theirs."""
STARTS: Final = "sequence_start"
ENDS: Final = "sequence_end"
ID: Final = "sequence_id"


class StateNotCopied(RuntimeError):
    """The state of a sequence holds what cannot be copied."""


def sequence_arguments(run: Callable[..., Any], state: str) -> frozenset[str]:
    """Return the arguments of a script with state that it gets beside its data.

    Args:
        run: The script's `run`.
        state: What its state is called.

    Raises:
        LoadFailed: It takes no state.
    """
    takes = parameters_of(run)
    if state not in takes:
        data = "data, states" if state == STATES else "raw_data, state"
        raise LoadFailed(
            f"run() has no argument {state!r}, and the model is to keep state for sequences: write run({data}), or "
            "leave sequence out of its settings"
        )
    return frozenset({state, STARTS, ENDS, ID} & takes.keys())


def refuse_states(run: Callable[..., Any]) -> None:
    """Raise LoadFailed for a `run` that takes rows and states without a deployment that keeps any."""
    taken = parameters_of(run).get(STATES)
    if taken is not None and taken.default is inspect.Parameter.empty:
        raise LoadFailed(
            f"run() has an argument {STATES!r}, and the model keeps no state: give it the setting sequence: {{}}"
        )


def copied(state: dict[Any, Any] | None) -> dict[Any, Any]:
    """Return a state that `run` may change; one that has not begun is empty.

    Raises:
        StateNotCopied: It holds what cannot be copied.
    """
    try:
        return {} if state is None else copy.deepcopy(state)
    except Exception as error:
        raise StateNotCopied(
            f"the state of the sequence holds what cannot be copied: {error!r}; begin the sequence anew, and keep "
            "only data in its state"
        ) from error
