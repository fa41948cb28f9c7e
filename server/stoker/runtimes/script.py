"""Entry scripts: `run` once per batch where it is decorated with `stoker.batched`, else once per request."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.batch_mark import BatchedInput
from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.isolation.row_test import try_rows
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import PROBE_ROWS, Outputs, RowFailure, Runtime
from stoker.runtimes.sequence_states import BatchStates, SequenceStates
from stoker.runtimes.tensorflow_setup import import_tensorflow
from stoker.runtimes.triton_python import load_triton_model
from stoker.script_form import ScriptForm
from stoker.scripts.batching import BatchedCalls, choose_batching
from stoker.scripts.call_watchdog import Watchdog
from stoker.scripts.coroutines import finish, share_loop
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.exits import contain
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.request_batches import BatchRun, RequestBatches
from stoker.scripts.request_batching import choose_request_batches
from stoker.scripts.results import encode_rows
from stoker.scripts.script_process import script_folders, script_variables
from stoker.scripts.script_sample import find_sample
from stoker.scripts.self_check import UNCHECKED
from stoker.scripts.sequence_arguments import (
    ENDS,
    ID,
    STARTS,
    STATE,
    STATES,
    copy_state,
    refuse_states,
    sequence_arguments,
)
from stoker.scripts.tensorflow_v1 import first_v1_use, install_version_1, read_uses
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, TEXT_IDS, Control, sequence_id_of
from stoker.settings.sequence import SequenceSettings
from stoker.system.forks import call_in_this_process
from stoker.system.logs import SELF_CHECK, frames_of_script, requests_in_log
from stoker.system.resources import require_memory
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorInfo, TensorSpec, check_batch
from stoker.wire.script_requests import HEAD_ROOM_BYTES, ScriptRequest

# Entry scripts with state: `run` is given that of the sequence, and what it makes of it counts with its answer.
#
# `run` gets a copy. What is kept is replaced by that once the caller is sure to get an answer; so a `run`
# that raises, is interrupted, or answers with an error, leaves the sequence as it was, whatever it had
# changed by then.


_FIRST_ERROR: Final = 400


def make_states(settings: SequenceSettings) -> SequenceStates:
    """Make room for the states of a script, which are dicts; None stands for one that has not begun."""
    idle_ns = round(settings.max_idle_s * 1e9)
    return SequenceStates([np.array(None, object)], settings.max_sequences, idle_ns, time.monotonic_ns)


def _with_sequences(signature: Signature, names: frozenset[str]) -> Signature:
    """Return the signature of a script with these arguments of its sequences."""
    controls = (Control(ID, "id", TEXT_IDS),) if ID in names else ()
    return dataclasses.replace(signature, sequences=True, controls=controls)


class _SequenceFields(NamedTuple):
    """The sequences of rows: their words, None for rows of no sequence, and the ids that callers know."""

    words: np.ndarray | None
    ids: list[str]

    @classmethod
    def of(cls, behind: Sequence[np.ndarray], rows: int) -> _SequenceFields:
        """Read what stands behind the inputs of rows."""
        *ids, words = behind or (None,)
        return cls(words, [sequence_id_of(packed.tobytes()) for packed in ids[0]] if ids else [""] * rows)


class _Scored(NamedTuple):
    """The outcome of a request: its answer, its state, and whether its caller gets no error."""

    answer: bytes
    state: Any
    answered: bool


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
            names: The arguments that it gets of its sequence.
        """
        self.signature = _with_sequences(signature, names)
        self.states = states
        self._calls, self._names = calls, names
        (answer,) = signature.outputs
        self._most_bytes = answer.row_bytes

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Score a request; the state changes only if it is answered without an error, in full."""
        packed, *behind = inputs
        words, ids = _SequenceFields.of(behind, len(packed))
        taken = self.states.load(words, len(packed))
        ran = [
            self._score(ScriptRequest.unpack(bytes(content)), *of_sequence)
            for content, *of_sequence in zip(packed, taken.arrays[0].tolist(), taken.flags, ids, strict=True)
        ]
        _store_states(self.states, taken, [one.state for one in ran], [one.answered for one in ran])
        return [[one.answer for one in ran]]

    def _score(self, request: ScriptRequest, before: Any, flags: int, name: str) -> _Scored:
        state: Any = None

        def of_sequence() -> Mapping[str, Any]:
            nonlocal state
            state = copy_state(before)
            given = {
                STATE: state,
                STARTS: bool(flags & SEQUENCE_START),
                ENDS: bool(flags & SEQUENCE_END),
                ID: name,
            }
            return {one: given[one] for one in self._names}

        answer = self._calls.answer(request, of_sequence)
        content = answer.pack()
        return _Scored(content, state, answer.status < _FIRST_ERROR and len(content) <= self._most_bytes)

    def fork(self) -> SequenceBodyScript:
        """Return the script with the same states for another thread."""
        return SequenceBodyScript(self._calls, self._names, self.signature, self.states)


class _Rows(threading.local):
    """The rows of which a thread calls `run`, and the states that it has been given for them."""

    taken: BatchStates | None = None
    ids: Sequence[str] = ()
    states: Sequence[Any] = ()


class RowsWithStates:
    """A `run(data, states)` as one of rows alone; without more said, no row has a state.

    Args:
        names: The arguments that it gets of the sequences of its rows.

    Attributes:
        names: As above.
    """

    def __init__(self, run: Callable[..., Any], names: frozenset[str]) -> None:
        self.names = names
        self._run, self._rows = run, _Rows()

    def __call__(self, data: Any) -> Any:
        """Call it with rows, and copies of the states that `run_with_states` has said for this thread."""
        taken = self._rows.taken
        before = [None] * len(data) if taken is None else taken.arrays[0].tolist()
        flags = np.zeros(len(data), int) if taken is None else np.array(taken.flags)
        states = self._rows.states = [copy_state(state) for state in before]
        ids = [""] * len(data) if taken is None else list(self._rows.ids)
        said = {
            STATES: states,
            STARTS: (flags & SEQUENCE_START) > 0,
            ENDS: (flags & SEQUENCE_END) > 0,
            ID: ids,
        }
        return self._run(data, **{name: said[name] for name in self.names})

    def run_with_states(
        self, taken: BatchStates, ids: Sequence[str], function: Callable[[], Outputs]
    ) -> tuple[Sequence[Any], Outputs]:
        """Call a function on this thread that calls `run` with copies of these states.

        Args:
            ids: Of which sequences the rows are.

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
        """Wrap a script."""
        self.signature = _with_sequences(inner.signature, run.names)
        self.states = states
        self._inner, self._run = inner, run

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch; the states change only if all of it has been run, and of rows with an answer."""
        rows, *behind = inputs
        words, ids = _SequenceFields.of(behind, len(rows))
        taken = self.states.load(words, len(rows))
        states, (output,) = self._run.run_with_states(taken, ids, lambda: self._inner.run([rows]))
        (spec,) = self.signature.outputs
        good = _answered(spec, output, len(rows))
        _store_states(self.states, taken, states, good)
        return [output]

    def fork(self) -> SequenceRowsScript:
        """Return the script with the same states for another thread."""
        return SequenceRowsScript(self._inner, self._run, self.states)


def _answered(spec: TensorSpec, output: Any, rows: int) -> list[bool]:
    """The rows whose callers get an answer."""
    if not spec.variable:
        check_batch(spec, output, rows)
        return [True] * rows
    return [not isinstance(text, RowFailure) and len(text) <= spec.row_bytes for text in output]


def _store_states(
    states: SequenceStates, taken: BatchStates, after: Sequence[Any], good: Sequence[bool]
) -> None:
    """Keep what `run` has made of the states of rows that are answered."""
    counting = [entry if kept else None for entry, kept in zip(taken.entries, good, strict=True)]
    array = np.empty(len(after), object)
    array[:] = after
    states.store(taken._replace(entries=counting), [array])


logger = logging.getLogger(__name__)

_MAX_ROW_JSON_BYTES: Final = 1 << 20


def load_script(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Execute and initialise an entry script.

    The process should be one of `stoker.scripts.script_process.enter_script_process`.

    Raises:
        LoadFailed: The script breaks its contract or `init` raised.
    """
    folders = script_folders(deployment, os.environ)
    os.environ.update(script_variables(deployment, device, threads, os.environ))
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    _prepare_tensorflow(deployment, folders, device, threads)
    watchdog = Watchdog(deployment.timeout_ms)
    watchdog.start()
    if deployment.model_config:
        return load_triton_model(deployment, device, watchdog)
    if (deployment.instances or 1) > 1:
        # Before `init`: what that sets up belongs to the loop on which `run` goes on.
        share_loop()
    script = EntryScript(deployment.path, deployment.model_dir)
    if deployment.sequence is not None:
        return _load_with_state(script, watchdog, deployment, deployment.sequence)
    if script.batched is not None:
        refuse_states(script.run)
        script.initialise(finish)
        runtime: Runtime = BatchedScript(script.run, script.batched, watchdog, deployment)
    elif isinstance(script.run, BatchRun):
        script.initialise(finish)
        batches = RequestBatches(script.run, watchdog)
        form = choose_request_batches(script.run, deployment, batches)
        isolation = _isolation(form, deployment.batching)
        runtime = BodyScript(BatchedCalls(batches.answers, form), deployment.max_body_bytes, isolation)
    else:
        calls = ScriptCalls(script.run, raw=script.raw, watchdog=watchdog)
        script.initialise(finish)
        batched = choose_batching(calls, deployment, find_sample(deployment, calls.form))
        several = calls.form.yields and (deployment.instances or 1) > 1
        kind = StreamingScript if several else BodyScript
        runtime = kind(batched, deployment.max_body_bytes, _isolation(batched.form, deployment.batching))
    return runtime


def _load_with_state(
    script: EntryScript, watchdog: Watchdog, deployment: Deployment, settings: SequenceSettings
) -> Runtime:
    """Initialise a script that is given the state of sequences."""
    states = make_states(settings)
    if script.batched is not None:
        run = RowsWithStates(script.run, sequence_arguments(script.run, STATES))
        script.initialise(finish)
        return SequenceRowsScript(BatchedScript(run, script.batched, watchdog, deployment), run, states)
    names = sequence_arguments(script.run, STATE)
    calls = ScriptCalls(script.run, raw=script.raw, watchdog=watchdog, apart=names)
    script.initialise(finish)
    batched = choose_batching(calls, deployment, None)
    signature = BodyScript(
        batched, deployment.max_body_bytes, _isolation(batched.form, deployment.batching)
    ).signature
    return SequenceBodyScript(calls, names, signature, states)


def _prepare_tensorflow(deployment: Deployment, folders: Sequence[str], device: Device, threads: int) -> None:
    """Confine TensorFlow to the device before the script imports it, and give it the API that the script needs."""
    uses = read_uses(deployment.path, folders)
    if not uses or importlib.util.find_spec("tensorflow") is None:
        return
    try:
        tensorflow = import_tensorflow(device, threads)
    except LoadFailed as error:
        logger.warning("the script's TensorFlow is not confined to %s: %s", device, error)
        tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or deployment.tensorflow_compat == "off":
        return
    if deployment.tensorflow_compat == "v1":
        install_version_1(tensorflow, "the setting tensorflow_compat is v1")
    elif (use := first_v1_use(uses, tensorflow)) is not None:
        install_version_1(
            tensorflow, f"the script uses {use}, which only TensorFlow 1 has (tensorflow_compat: auto)"
        )


class BodyScript:
    """A `run` that takes whole requests."""

    def __init__(
        self, calls: BatchedCalls, max_body_bytes: int, isolation: RowIsolation | None = None
    ) -> None:
        self._calls = calls
        size_bytes = max_body_bytes + HEAD_ROOM_BYTES
        request = TensorSpec("request", "uint8", (size_bytes,), variable=True)
        answer = TensorSpec("answer", "uint8", (size_bytes,), variable=True)
        self.signature = Signature(
            (request,), (answer,), takes="body", script=calls.form, isolation=isolation
        )

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Score requests; one that raises fails alone."""
        requests = [ScriptRequest.unpack(bytes(packed)) for packed in inputs[0]]
        return [[answer.pack() for answer in self._calls.answers(requests)]]


class StreamingScript(BodyScript):
    """A `run` that yields its answers, several at the same time: each on a thread, which is an instance."""

    def __init__(
        self, calls: BatchedCalls, max_body_bytes: int, isolation: RowIsolation | None = None
    ) -> None:
        super().__init__(calls, max_body_bytes, isolation)
        self._made_of = calls, max_body_bytes, isolation

    def fork(self) -> StreamingScript:
        """Return the script for another thread."""
        return StreamingScript(*self._made_of)


class BatchedScript:
    """A `run` decorated with `stoker.batched`."""

    def __init__(
        self, run: Callable[..., Any], taken: BatchedInput, watchdog: Watchdog, deployment: Deployment
    ) -> None:
        self._run = run
        self._watchdog = watchdog
        try:
            spec = TensorSpec("data", taken.dtype, taken.shape)
        except ValueError as error:
            raise LoadFailed(f"stoker.batched: {error}") from error
        output = _learn_output(run, spec)
        self._texts = output.variable
        isolation = _check_declared_batching(
            deployment, self._tried, TensorInfo(spec.name, spec.dtype, (-1, *spec.shape))
        )
        self.signature = Signature((spec,), (output,), isolation=isolation)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Call the script once with the whole batch.

        Raises:
            ValueError: It returned another number of rows.
            ScoringTimeout: It took too long and was interrupted.
        """
        return contain(lambda: self._answers(inputs[0]))

    def _tried(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The script as a function of named tensors, without a word in the log."""
        with requests_in_log(SELF_CHECK):
            (answers,) = self.run([*feeds.values()])
        rows = np.empty(len(answers), object)
        rows[:] = list(answers)
        return {"result": rows if self._texts else np.asarray(answers)}

    def _answers(self, batch: Any) -> Outputs:
        result = self._watchdog.guard(lambda: self._run(batch))
        if len(result) != len(batch):
            raise ValueError(f"run() returned {len(result)} rows for a batch of {len(batch)}")
        return [encode_rows(result)] if self._texts else [np.asarray(result)]


def _check_declared_batching(
    deployment: Deployment,
    run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    info: TensorInfo,
) -> RowIsolation:
    """Believe a script that declares its batches, and warn of what speaks against it."""
    evidence = try_rows(run, [info], [deployment.max_batch_rows], proven=True)
    if evidence.finding == "mixed":
        logger.warning(
            "%s is decorated with stoker.batched, so its requests are batched, though %s",
            deployment.name,
            evidence.reason,
        )
    return RowIsolation(True, "declared", "the script says so by stoker.batched", evidence.companions)


def _isolation(form: ScriptForm, wanted: str) -> RowIsolation:
    """Whether requests to a script that takes whole bodies share a batch, as its self-check has chosen."""
    batched = form.batching != "none"
    said = wanted == "none" or (batched and form.batching_reason.startswith(UNCHECKED))
    return RowIsolation(batched, "said" if said else "tested", form.batching_reason)


def _learn_output(run: Callable[..., Any], spec: TensorSpec) -> TensorSpec:
    """See what `run` returns for rows of zeros: an array of numbers, or anything else as JSON per row."""
    most_rows = max(PROBE_ROWS)
    require_memory(most_rows * spec.row_bytes, f"{most_rows} rows of stoker.batched(shape={spec.shape})")
    outputs = [_output_of(_run_zeros(run, spec, rows), rows) for rows in PROBE_ROWS]
    if any(output != outputs[0] for output in outputs):
        found = ", ".join(
            f"{'JSON' if output.variable else f'{output.dtype}{list(output.shape)}'} a row for a batch of {rows}"
            for output, rows in zip(outputs, PROBE_ROWS, strict=True)
        )
        raise LoadFailed(f"run() has to return the same kind of rows for batches of all sizes; got {found}")
    return outputs[0]


def _run_zeros(run: Callable[..., Any], spec: TensorSpec, rows: int) -> Any:
    zeros = np.zeros((rows, *spec.shape), spec.dtype)
    try:
        with requests_in_log(SELF_CHECK):
            return call_in_this_process(lambda: run(zeros))
    except BaseException as error:
        lines = traceback.format_exception(type(error), error, frames_of_script(error))
        raise LoadFailed(
            f"run() fails on a batch of {rows} rows of zeros: {error!r}\n{''.join(lines).rstrip()}"
        ) from error


def _output_of(result: Any, rows: int) -> TensorSpec:
    """Describe the rows of a result; raises LoadFailed if it has not an entry for each row."""
    if not isinstance(result, Sized) or getattr(result, "shape", None) == ():
        raise LoadFailed(
            f"run() returned {type(result).__name__} for a batch of {rows}: it has to return an entry for each row, "
            "as an array or a list"
        )
    if len(result) != rows:
        raise LoadFailed(f"run() returned {len(result)} rows for a batch of {rows}")
    if isinstance(result, np.ndarray) and result.dtype.name in NUMERIC_DTYPES:
        return TensorSpec("result", result.dtype.name, result.shape[1:])
    return TensorSpec("result", "uint8", (_MAX_ROW_JSON_BYTES,), variable=True)
