"""Entry scripts: `run` is called once per batch if it is decorated with `stoker.batched`, else once per request."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from copy import copy

import numpy as np

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import Outputs, Runtime
from stoker.runtimes.batched_script import BatchedScript
from stoker.runtimes.script_sequences import (
    RowsWithStates,
    SequenceBodyScript,
    SequenceRowsScript,
    make_states,
)
from stoker.runtimes.tensorflow_setup import import_tensorflow
from stoker.runtimes.triton_python import load_triton_model
from stoker.script_form import ScriptForm
from stoker.scripts.batching_choice import BatchedCalls, choose_batching
from stoker.scripts.call_watchdog import Watchdog
from stoker.scripts.coroutines import finish, share_loop
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.request_batch_choice import choose_request_batches
from stoker.scripts.request_batches import BatchRun, RequestBatches
from stoker.scripts.script_process import script_folders, script_variables
from stoker.scripts.script_sample import find_sample
from stoker.scripts.self_check import UNCHECKED
from stoker.scripts.sequence_arguments import STATE, STATES, refuse_states, sequence_arguments
from stoker.scripts.tensorflow_v1 import first_v1_use, install_version_1, read_uses
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import Signature, TensorSpec
from stoker.wire.script_requests import HEAD_ROOM_BYTES, ScriptRequest

logger = logging.getLogger(__name__)


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
        # Before `init`, whose objects belong to the loop of `run`.
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
    """Initialise a script that gets the state of sequences."""
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
    """Confine TensorFlow to the device before the script imports it, and install the API that the script needs."""
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
        """Score requests. A request that raises does not affect the others."""
        requests = [ScriptRequest.unpack(bytes(packed)) for packed in inputs[0]]
        return [[answer.pack() for answer in self._calls.answers(requests)]]


class StreamingScript(BodyScript):
    """A `run` that yields its answers, several at the same time. Each runs on a thread, which is an instance."""

    def fork(self) -> StreamingScript:
        """Return the script for another thread."""
        return copy(self)


def _isolation(form: ScriptForm, wanted: str) -> RowIsolation:
    """Return whether requests to a script that takes whole bodies share a batch, by its self-check."""
    batched = form.batching != "none"
    is_setting = wanted == "none" or (batched and form.batching_reason.startswith(UNCHECKED))
    return RowIsolation(batched, "said" if is_setting else "tested", form.batching_reason)
