"""Entry scripts with state: `run` is given that of the sequence, and what it makes of it counts with its answer.

`run` gets a copy. What is kept is replaced by that once the caller is sure to get an answer; so a `run` that raises,
is interrupted, or answers with an error, leaves the sequence as it was, whatever it had changed by then.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.runtimes.base import Outputs, RowFailure, Runtime
from stoker.runtimes.sequence_states import SequenceStates, Taken
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.sequence_arguments import ENDS, ID, STARTS, STATE, STATES, copied
from stoker.sequences import END, START, TEXT_IDS, Control, text_of
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import Signature, TensorSpec, check_batch
from stoker.wire.envelope import ScriptRequest

__all__ = ["RowsWithStates", "SequenceBodyScript", "SequenceRowsScript", "script_states"]

_FIRST_ERROR: Final = 400


def script_states(settings: SequenceSettings) -> SequenceStates:
    """Make room for the states of a script, which are dicts; None stands for one that has not begun."""
    idle_ns = round(settings.max_idle_s * 1e9)
    return SequenceStates([np.array(None, object)], settings.max_sequences, idle_ns, time.monotonic_ns)


def _with_sequences(signature: Signature, names: frozenset[str]) -> Signature:
    """What a script takes and gives that is given these arguments of its sequences."""
    controls = (Control(ID, "id", TEXT_IDS),) if ID in names else ()
    return dataclasses.replace(signature, sequences=True, controls=controls)


class _Said(NamedTuple):
    """What rows say of their sequences: their words, None where they are of none, and as what callers know them."""

    words: np.ndarray | None
    ids: list[str]

    @classmethod
    def of(cls, behind: Sequence[np.ndarray], rows: int) -> _Said:
        """Read what stands behind the inputs of rows."""
        *ids, words = behind or (None,)
        return cls(words, [text_of(packed.tobytes()) for packed in ids[0]] if ids else [""] * rows)


class _Scored(NamedTuple):
    """What a request has come to: its answer, its state, and whether its caller is told no error."""

    answer: bytes
    state: Any
    told: bool


class SequenceBodyScript:
    """A `run` that takes whole requests, one at a time.

    Attributes:
        signature: What it takes and gives.
        states: The states, of all instances.
    """

    def __init__(
        self, calls: ScriptCalls, names: frozenset[str], signature: Signature, states: SequenceStates
    ) -> None:
        """Wrap a script.

        Args:
            calls: Its calls.
            names: The arguments that it gets of its sequence.
            signature: What it takes and gives without state.
            states: Where the states are.
        """
        self.signature = _with_sequences(signature, names)
        self.states = states
        self._calls, self._names = calls, names
        (answer,) = signature.outputs
        self._most_bytes = answer.row_bytes

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Score a request; the state changes only if it is answered without an error, in full."""
        packed, *behind = inputs
        words, ids = _Said.of(behind, len(packed))
        taken = self.states.take(words, len(packed))
        ran = [
            self._score(ScriptRequest.unpack(bytes(content)), *of_sequence)
            for content, *of_sequence in zip(packed, taken.arrays[0].tolist(), taken.flags, ids, strict=True)
        ]
        _leave(self.states, taken, [one.state for one in ran], [one.told for one in ran])
        return [[one.answer for one in ran]]

    def _score(self, request: ScriptRequest, before: Any, flags: int, name: str) -> _Scored:
        state: Any = None

        def of_sequence() -> Mapping[str, Any]:
            nonlocal state
            state = copied(before)
            given = {STATE: state, STARTS: bool(flags & START), ENDS: bool(flags & END), ID: name}
            return {one: given[one] for one in self._names}

        answer = self._calls.answer(request, of_sequence)
        content = answer.pack()
        return _Scored(content, state, answer.status < _FIRST_ERROR and len(content) <= self._most_bytes)

    def fork(self) -> SequenceBodyScript:
        """The same script and the same states, for another thread."""
        return SequenceBodyScript(self._calls, self._names, self.signature, self.states)


class _Rows(threading.local):
    """The rows of which a thread calls `run`, and the states that it has been given for them."""

    taken: Taken | None = None
    ids: Sequence[str] = ()
    states: Sequence[Any] = ()


class RowsWithStates:
    """A `run(data, states)` as one of rows alone; without more said, no row has a state.

    Args:
        run: The script's `run`.
        names: The arguments that it gets of the sequences of its rows.

    Attributes:
        names: As above.
    """

    def __init__(self, run: Callable[..., Any], names: frozenset[str]) -> None:
        self.names = names
        self._run, self._rows = run, _Rows()

    def __call__(self, data: Any) -> Any:
        """Call it with rows, and copies of the states that `given` has said for this thread."""
        taken = self._rows.taken
        before = [None] * len(data) if taken is None else taken.arrays[0].tolist()
        flags = np.zeros(len(data), int) if taken is None else np.array(taken.flags)
        states = self._rows.states = [copied(state) for state in before]
        ids = [""] * len(data) if taken is None else list(self._rows.ids)
        said = {STATES: states, STARTS: (flags & START) > 0, ENDS: (flags & END) > 0, ID: ids}
        return self._run(data, **{name: said[name] for name in self.names})

    def given(
        self, taken: Taken, ids: Sequence[str], function: Callable[[], Outputs]
    ) -> tuple[Sequence[Any], Outputs]:
        """Call a function on this thread that calls `run` with copies of these states.

        Args:
            taken: The states.
            ids: Of which sequences the rows are.
            function: Calls it.

        Returns:
            The list as `run` has left it, which may hold others; and what the function returns.

        Raises:
            ValueError: There are more or fewer states than rows.
        """
        self._rows.taken, self._rows.ids = taken, ids
        try:
            outputs = function()
            states = self._rows.states
        finally:
            self._rows.taken, self._rows.ids, self._rows.states = None, (), ()
        if len(states) != len(taken.flags):
            raise ValueError(f"run() has left {len(states)} states for a batch of {len(taken.flags)}")
        return states, outputs


class SequenceRowsScript:
    """A `run` decorated with `stoker.batched` that takes the states of its rows.

    Attributes:
        signature: What it takes and gives.
        states: The states, of all instances.
    """

    def __init__(self, inner: Runtime, run: RowsWithStates, states: SequenceStates) -> None:
        """Wrap a script.

        Args:
            inner: The script as a runtime of rows.
            run: What that calls.
            states: Where the states are.
        """
        self.signature = _with_sequences(inner.signature, run.names)
        self.states = states
        self._inner, self._run = inner, run

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch; the states change only if all of it has been run, and of rows with an answer."""
        rows, *behind = inputs
        words, ids = _Said.of(behind, len(rows))
        taken = self.states.take(words, len(rows))
        states, (output,) = self._run.given(taken, ids, lambda: self._inner.run([rows]))
        (spec,) = self.signature.outputs
        good = _answered(spec, output, len(rows))
        _leave(self.states, taken, states, good)
        return [output]

    def fork(self) -> SequenceRowsScript:
        """The same script and the same states, for another thread."""
        return SequenceRowsScript(self._inner, self._run, self.states)


def _answered(spec: TensorSpec, output: Any, rows: int) -> list[bool]:
    """Which rows have an answer that their callers get."""
    if not spec.variable:
        check_batch(spec, output, rows)
        return [True] * rows
    return [not isinstance(text, RowFailure) and len(text) <= spec.row_bytes for text in output]


def _leave(states: SequenceStates, taken: Taken, after: Sequence[Any], good: Sequence[bool]) -> None:
    """Keep what `run` has made of the states of rows that are answered."""
    counting = [entry if kept else None for entry, kept in zip(taken.entries, good, strict=True)]
    array = np.empty(len(after), object)
    array[:] = after
    states.leave(taken._replace(entries=counting), [array])
