"""Entry scripts whose `run` is decorated with `stoker.batched`: one call for a batch of rows."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Final

import numpy as np

from stoker.batch_mark import BatchedInput
from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.row_test import try_rows
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import PROBE_ROWS, Outputs
from stoker.scripts.call_watchdog import Watchdog
from stoker.scripts.exits import contain
from stoker.scripts.results import encode_rows
from stoker.system.forks import call_in_this_process
from stoker.system.logs import SELF_CHECK, frames_of_script, requests_in_log
from stoker.system.resources import require_memory
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorInfo, TensorSpec

logger = logging.getLogger(__name__)

_MAX_ROW_JSON_BYTES: Final = 1 << 20


class BatchedScript:
    """A `run` decorated with `stoker.batched`."""

    def __init__(
        self, run: Callable[..., Any], input_type: BatchedInput, watchdog: Watchdog, deployment: Deployment
    ) -> None:
        self._run = run
        self._watchdog = watchdog
        try:
            spec = TensorSpec("data", input_type.dtype, input_type.shape)
        except ValueError as error:
            raise LoadFailed(f"stoker.batched: {error}") from error
        output = _learn_output(run, spec)
        self._texts = output.variable
        isolation = _check_declared_batching(
            deployment, self._run_quietly, TensorInfo(spec.name, spec.dtype, (-1, *spec.shape))
        )
        self.signature = Signature((spec,), (output,), isolation=isolation)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Call the script once with the whole batch.

        Raises:
            ValueError: The script returned another number of rows.
            ScoringTimeout: The script took too long and was interrupted.
        """
        return contain(lambda: self._answers(inputs[0]))

    def _run_quietly(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the script as a function of named tensors, without lines in the log."""
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
    """Accept the declaration of a script that its rows share batches; warn if a test contradicts it."""
    evidence = try_rows(run, [info], [deployment.max_batch_rows], proven=True)
    if evidence.finding == "mixed":
        logger.warning(
            "%s is decorated with stoker.batched, so its requests are batched, though %s",
            deployment.name,
            evidence.reason,
        )
    return RowIsolation(True, "declared", "the script says so by stoker.batched", evidence.companions)


def _learn_output(run: Callable[..., Any], spec: TensorSpec) -> TensorSpec:
    """Find the result of `run` for rows of zeros: an array of numbers, or else JSON per row."""
    most_rows = max(PROBE_ROWS)
    require_memory(most_rows * spec.row_bytes, f"{most_rows} rows of stoker.batched(shape={spec.shape})")
    outputs = [_describe_rows(_run_zeros(run, spec, rows), rows) for rows in PROBE_ROWS]
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


def _describe_rows(result: Any, rows: int) -> TensorSpec:
    """Describe the rows of a result; raise LoadFailed if it lacks an entry for each row."""
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
