"""Entry scripts with state: `run` gets a copy of the state of its sequence.

The copy replaces the state once the caller is sure to get an answer. If `run` raises, is interrupted, or answers with
an error, the state does not change.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.runtimes.base import Outputs, RowFailure, Runtime
from stoker.runtimes.sequence_states import BatchStates, SequenceStates
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.sequence_arguments import ENDS, ID, STARTS, STATE, STATES, copy_state
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, TEXT_IDS, Control, sequence_id_of
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import Signature, TensorSpec, check_batch
from stoker.wire.script_requests import ScriptRequest

_FIRST_ERROR: Final = 400


def make_states(settings: SequenceSettings) -> SequenceStates:
    """Make the states of a script, which are dicts; the initial one is None."""
    idle_ns = round(settings.max_idle_s * 1e9)
    return SequenceStates([np.array(None, object)], settings.max_sequences, idle_ns, time.monotonic_ns)


def _with_sequences(signature: Signature, names: frozenset[str]) -> Signature:
    """Return the signature of a script with the arguments `names` for its sequences."""
    controls = (Control(ID, "id", TEXT_IDS),) if ID in names else ()
    return dataclasses.replace(signature, sequences=True, controls=controls)


class _SequenceFields(NamedTuple):
    """The sequences of rows: their words, None if no row has a sequence, and the callers' ids."""

    words: np.ndarray | None
    ids: list[str]

    @classmethod
    def of(cls, fields: Sequence[np.ndarray], rows: int) -> _SequenceFields:
        """Read the fields that follow the inputs of rows."""
        *ids, words = fields or (None,)
        return cls(words, [sequence_id_of(packed.tobytes()) for packed in ids[0]] if ids else [""] * rows)


class _Scored(NamedTuple):
    """The outcome of a request: its answer, its state, and whether its caller gets no error."""

    answer: bytes
    state: Any
    is_answered: bool


class SequenceBodyScript:
    """A `run` that takes whole requests, one at a time.

    Attributes:
        signature: Its inputs and outputs.
        states: The states of all instances.
    """

    def __init__(
        self, calls: ScriptCalls, names: frozenset[str], signature: Signature, states: SequenceStates
    ) -> None:
        """Wrap a script.

        Args:
            names: Its arguments for the sequence.
        """
        self.signature = _with_sequences(signature, names)
        self.states = states
        self._calls, self._names = calls, names
        (answer,) = signature.outputs
        self._most_bytes = answer.row_bytes

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Score a request. Its state changes only if the answer is no error and fits its row."""
        packed, *fields = inputs
        words, ids = _SequenceFields.of(fields, len(packed))
        loaded = self.states.load(words, len(packed))
        scored = [
            self._score(ScriptRequest.unpack(bytes(content)), state, flags, name)
            for content, state, flags, name in zip(
                packed, loaded.arrays[0].tolist(), loaded.flags, ids, strict=True
            )
        ]
        _store_states(self.states, loaded, [one.state for one in scored], [one.is_answered for one in scored])
        return [[one.answer for one in scored]]

    def _score(self, request: ScriptRequest, before: Any, flags: int, name: str) -> _Scored:
        state: Any = None

        def arguments() -> Mapping[str, Any]:
            nonlocal state
            state = copy_state(before)
            values = {
                STATE: state,
                STARTS: bool(flags & SEQUENCE_START),
                ENDS: bool(flags & SEQUENCE_END),
                ID: name,
            }
            return {argument: values[argument] for argument in self._names}

        answer = self._calls.answer(request, arguments)
        content = answer.pack()
        return _Scored(content, state, answer.status < _FIRST_ERROR and len(content) <= self._most_bytes)

    def fork(self) -> SequenceBodyScript:
        """Return the script with the same states for another thread."""
        return SequenceBodyScript(self._calls, self._names, self.signature, self.states)


class _Rows(threading.local):
    """The rows with which a thread calls `run`, and their states."""

    loaded: BatchStates | None = None
    ids: Sequence[str] = ()
    states: Sequence[Any] = ()


class RowsWithStates:
    """A `run(data, states)` as a function of rows alone; outside of `run_with_states` no row has a state.

    Attributes:
        names: Its arguments for the sequences of its rows.
    """

    def __init__(self, run: Callable[..., Any], names: frozenset[str]) -> None:
        self.names = names
        self._run, self._rows = run, _Rows()

    def __call__(self, data: Any) -> Any:
        """Call `run` with rows, and with copies of the states that `run_with_states` has set for this thread."""
        loaded = self._rows.loaded
        before = [None] * len(data) if loaded is None else loaded.arrays[0].tolist()
        flags = np.zeros(len(data), int) if loaded is None else np.array(loaded.flags)
        states = self._rows.states = [copy_state(state) for state in before]
        ids = [""] * len(data) if loaded is None else list(self._rows.ids)
        values = {
            STATES: states,
            STARTS: (flags & SEQUENCE_START) > 0,
            ENDS: (flags & SEQUENCE_END) > 0,
            ID: ids,
        }
        return self._run(data, **{name: values[name] for name in self.names})

    def run_with_states(
        self, loaded: BatchStates, ids: Sequence[str], function: Callable[[], Outputs]
    ) -> tuple[Sequence[Any], Outputs]:
        """Call a function that calls `run` on this thread, with copies of these states.

        Args:
            ids: The sequence of each row.

        Returns:
            The list of states after `run`, which may have replaced them, and the result of the function.

        Raises:
            ValueError: There are more or fewer states than rows.
        """
        self._rows.loaded, self._rows.ids = loaded, ids
        try:
            outputs = function()
            states = self._rows.states
        finally:
            self._rows.loaded, self._rows.ids, self._rows.states = None, (), ()
        if len(states) != len(loaded.flags):
            raise ValueError(f"run() has left {len(states)} states for a batch of {len(loaded.flags)}")
        return states, outputs


class SequenceRowsScript:
    """A `run` decorated with `stoker.batched` that takes the states of its rows.

    Attributes:
        signature: Its inputs and outputs.
        states: The states of all instances.
    """

    def __init__(self, inner: Runtime, run: RowsWithStates, states: SequenceStates) -> None:
        """Wrap a script."""
        self.signature = _with_sequences(inner.signature, run.names)
        self.states = states
        self._inner, self._run = inner, run

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch. States change only if the whole batch has run, and only for rows with an answer."""
        rows, *fields = inputs
        words, ids = _SequenceFields.of(fields, len(rows))
        loaded = self.states.load(words, len(rows))
        states, (output,) = self._run.run_with_states(loaded, ids, lambda: self._inner.run([rows]))
        (spec,) = self.signature.outputs
        _store_states(self.states, loaded, states, _are_answered(spec, output, len(rows)))
        return [output]

    def fork(self) -> SequenceRowsScript:
        """Return the script with the same states for another thread."""
        return SequenceRowsScript(self._inner, self._run, self.states)


def _are_answered(spec: TensorSpec, output: Any, rows: int) -> list[bool]:
    """Return for each row whether its caller gets an answer."""
    if not spec.variable:
        check_batch(spec, output, rows)
        return [True] * rows
    return [not isinstance(text, RowFailure) and len(text) <= spec.row_bytes for text in output]


def _store_states(
    states: SequenceStates, loaded: BatchStates, after: Sequence[Any], are_answered: Sequence[bool]
) -> None:
    """Store the states of answered rows."""
    entries = [
        entry if is_answered else None
        for entry, is_answered in zip(loaded.entries, are_answered, strict=True)
    ]
    array = np.empty(len(after), object)
    array[:] = after
    states.store(loaded._replace(entries=entries), [array])
