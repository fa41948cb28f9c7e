"""Entry scripts: `run` once per batch where it is decorated with `stoker.batched`, else once per request."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Final

import numpy as np

from stoker.batch_mark import BatchedInput
from stoker.errors import LoadFailed
from stoker.isolation.row_test import try_rows
from stoker.runtimes.base import Outputs, Runtime
from stoker.runtimes.script_sequences import (
    RowsWithStates,
    SequenceBodyScript,
    SequenceRowsScript,
    script_states,
)
from stoker.runtimes.tensorflow import import_tensorflow
from stoker.script_form import ScriptForm
from stoker.scripts.batching import UNCHECKED, BatchedCalls, choose_batching, find_sample
from stoker.scripts.calls import ScriptCalls
from stoker.scripts.containment import contain
from stoker.scripts.coroutines import finish, share_loop
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.environment import script_folders, script_variables
from stoker.scripts.results import encode_rows
from stoker.scripts.sequence_arguments import STATE, STATES, refuse_states, sequence_arguments
from stoker.scripts.tensorflow_v1 import first_v1_use, give_v1_api, read_uses
from stoker.scripts.watchdog import Watchdog
from stoker.servable import Device, Servable
from stoker.settings.sequence import SequenceSettings
from stoker.system.forks import call_in_this_process
from stoker.system.memory import require_memory
from stoker.system.request_log import SELF_CHECK, requests_in_log
from stoker.system.tracebacks import frames_of_script
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorInfo, TensorSpec
from stoker.verdict import Verdict
from stoker.wire.envelope import HEAD_ROOM_BYTES, ScriptRequest

__all__ = ["BatchedScript", "BodyScript", "StreamingScript", "load_script"]

logger = logging.getLogger(__name__)

_MAX_ROW_JSON_BYTES: Final = 1 << 20


def load_script(servable: Servable, device: Device, threads: int) -> Runtime:
    """Execute and initialise an entry script.

    The process should be one of `stoker.scripts.environment.enter_script_process`.

    Raises:
        LoadFailed: The script breaks its contract or `init` raised.
    """
    folders = script_folders(servable, os.environ)
    os.environ.update(script_variables(servable, device, threads, os.environ))
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    _prepare_tensorflow(servable, folders, device, threads)
    if (servable.instances or 1) > 1:
        # Before `init`: what that sets up belongs to the loop on which `run` goes on.
        share_loop()
    script = EntryScript(servable.path, servable.model_dir)
    watchdog = Watchdog(servable.terms.timeout_ms)
    watchdog.start()
    if servable.sequence is not None:
        return _load_with_state(script, watchdog, servable, servable.sequence)
    if script.batched is not None:
        refuse_states(script.run)
        script.initialise(finish)
        runtime: Runtime = BatchedScript(script.run, script.batched, watchdog, servable)
    else:
        calls = ScriptCalls(script.run, raw=script.raw, watchdog=watchdog)
        script.initialise(finish)
        batched = choose_batching(calls, servable, find_sample(servable, calls.form))
        several = calls.form.yields and (servable.instances or 1) > 1
        kind = StreamingScript if several else BodyScript
        runtime = kind(batched, servable.max_body_bytes, _verdict(batched.form, servable.batching))
    return runtime


def _load_with_state(
    script: EntryScript, watchdog: Watchdog, servable: Servable, settings: SequenceSettings
) -> Runtime:
    """Initialise a script that is given the state of sequences."""
    states = script_states(settings)
    if script.batched is not None:
        run = RowsWithStates(script.run, sequence_arguments(script.run, STATES))
        script.initialise(finish)
        return SequenceRowsScript(BatchedScript(run, script.batched, watchdog, servable), run, states)
    names = sequence_arguments(script.run, STATE)
    calls = ScriptCalls(script.run, raw=script.raw, watchdog=watchdog, apart=names)
    script.initialise(finish)
    batched = choose_batching(calls, servable, None)
    signature = BodyScript(
        batched, servable.max_body_bytes, _verdict(batched.form, servable.batching)
    ).signature
    return SequenceBodyScript(calls, names, signature, states)


def _prepare_tensorflow(servable: Servable, folders: Sequence[str], device: Device, threads: int) -> None:
    """Confine TensorFlow to the device before the script imports it, and give it the API that the script needs."""
    uses = read_uses(servable.path, folders)
    if not uses or importlib.util.find_spec("tensorflow") is None:
        return
    try:
        tensorflow = import_tensorflow(device, threads)
    except LoadFailed as error:
        logger.warning("the script's TensorFlow is not confined to %s: %s", device, error)
        tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or servable.tensorflow_compat == "off":
        return
    if servable.tensorflow_compat == "v1":
        give_v1_api(tensorflow, "the setting tensorflow_compat is v1")
    elif (use := first_v1_use(uses, tensorflow)) is not None:
        give_v1_api(
            tensorflow, f"the script uses {use}, which only TensorFlow 1 has (tensorflow_compat: auto)"
        )


class BodyScript:
    """A `run` that takes whole requests."""

    def __init__(self, calls: BatchedCalls, max_body_bytes: int, verdict: Verdict | None = None) -> None:
        self._calls = calls
        size_bytes = max_body_bytes + HEAD_ROOM_BYTES
        request = TensorSpec("request", "uint8", (size_bytes,), variable=True)
        answer = TensorSpec("answer", "uint8", (size_bytes,), variable=True)
        self.signature = Signature((request,), (answer,), takes="body", script=calls.form, verdict=verdict)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Score requests; one that raises fails alone."""
        requests = [ScriptRequest.unpack(bytes(packed)) for packed in inputs[0]]
        return [[answer.pack() for answer in self._calls.answers(requests)]]


class StreamingScript(BodyScript):
    """A `run` that yields its answers, several at the same time: each on a thread, which is an instance."""

    def __init__(self, calls: BatchedCalls, max_body_bytes: int, verdict: Verdict | None = None) -> None:
        super().__init__(calls, max_body_bytes, verdict)
        self._made_of = calls, max_body_bytes, verdict

    def fork(self) -> StreamingScript:
        """The same script, for another thread."""
        return StreamingScript(*self._made_of)


class BatchedScript:
    """A `run` decorated with `stoker.batched`."""

    def __init__(
        self, run: Callable[..., Any], taken: BatchedInput, watchdog: Watchdog, servable: Servable
    ) -> None:
        self._run = run
        self._watchdog = watchdog
        try:
            spec = TensorSpec("data", taken.dtype, taken.shape)
        except ValueError as error:
            raise LoadFailed(f"stoker.batched: {error}") from error
        output = _learn_output(run, spec)
        self._texts = output.variable
        verdict = _declared(servable, self._tried, TensorInfo(spec.name, spec.dtype, (-1, *spec.shape)))
        self.signature = Signature((spec,), (output,), verdict=verdict)

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


def _declared(
    servable: Servable, run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]], info: TensorInfo
) -> Verdict:
    """The verdict on a script that declares its batches: it is believed, and warned of what speaks against it."""
    evidence = try_rows(run, [info], [servable.max_batch_rows], proven=True)
    if evidence.finding == "mixed":
        logger.warning(
            "%s is decorated with stoker.batched, so its requests are batched, though %s",
            servable.name,
            evidence.reason,
        )
    return Verdict(True, "declared", "the script says so by stoker.batched", evidence.companions)


def _verdict(form: ScriptForm, wanted: str) -> Verdict:
    """The verdict on a script that takes whole bodies, from what its self-check has chosen."""
    batched = form.batching != "none"
    said = wanted == "none" or (batched and form.batching_reason.startswith(UNCHECKED))
    return Verdict(batched, "said" if said else "tested", form.batching_reason)


def _learn_output(run: Callable[..., Any], spec: TensorSpec) -> TensorSpec:
    """See what `run` returns for two rows of zeros: an array of numbers, or anything else as JSON per row."""
    require_memory(2 * spec.row_bytes, f"two rows of stoker.batched(shape={spec.shape})")
    zeros = np.zeros((2, *spec.shape), spec.dtype)
    try:
        with requests_in_log(SELF_CHECK):
            result = call_in_this_process(lambda: run(zeros))
    except BaseException as error:
        lines = traceback.format_exception(type(error), error, frames_of_script(error))
        raise LoadFailed(
            f"run() fails on a batch of two rows of zeros: {error!r}\n{''.join(lines).rstrip()}"
        ) from error
    if not isinstance(result, Sized) or getattr(result, "shape", None) == ():
        raise LoadFailed(
            f"run() returned {type(result).__name__} for a batch of 2: it has to return an entry for each row, as an "
            "array or a list"
        )
    if len(result) != 2:
        raise LoadFailed(f"run() returned {len(result)} rows for a batch of 2")
    if isinstance(result, np.ndarray) and result.dtype.name in NUMERIC_DTYPES:
        return TensorSpec("result", result.dtype.name, result.shape[1:])
    return TensorSpec("result", "uint8", (_MAX_ROW_JSON_BYTES,), variable=True)
