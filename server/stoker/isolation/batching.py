"""Decides whether rows of different callers may share a batch: from a model's graph and from tests of its rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.row_test import Evidence, Run, try_rows
from stoker.row_isolation import RowIsolation
from stoker.system.wording import format_count
from stoker.tensors import ModelTensors

logger = logging.getLogger(__name__)


_VOUCH: Final = "batching: rows"
_SAMPLE: Final = "sample_input: FILE or batching: rows"
_BOUNDS: Final = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-3, "float64": 1e-6}
"""Tolerated differences between answers alone and in a batch, by the least precise output, without a warning."""
_REDUCED: Final = {"tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
"""The same, by the precision of products if that is less than the precision of the outputs."""
_MIDDLE: Final = 16


def decide_batching(
    deployment: Deployment,
    run: Run,
    tensors: ModelTensors,
    read: Callable[[], GraphAnalysis] | None,
    sample: Mapping[str, np.ndarray] | None = None,
    computed_in: str | None = None,
) -> RowIsolation:
    """Determine whether a model's rows affect each other, and how that is known.

    Args:
        tensors: Its inputs and outputs; `batched` says whether their first axes may be one batch axis.
        read: Analyses its graph; None if there is no graph to analyse.
        sample: Rows that the model is known to answer; None without any.
        computed_in: The precision of its products, by the name in the setting; None for that of its tensors.

    Raises:
        LoadFailed: The operator vouches for rows, and an output has no entry for each row.
    """
    if not tensors.batched:
        free = next((info.name for info in tensors.inputs if info.any_rank), None)
        reason = (
            f"its input {free!r} may have any rank" if free is not None else "its inputs have no batch axis"
        )
        return RowIsolation(False, "declared", reason)
    if deployment.batching == "none":
        return RowIsolation(False, "said", "batching is none, as it was asked for")
    reading = GraphAnalysis("unknown") if read is None else read()
    vouched = deployment.batching == "rows"
    if reading.finding == "mixed" and not vouched:
        return RowIsolation(False, "read", reading.reason, setting=_VOUCH)
    most = deployment.batch_buckets[-1] if deployment.batch_buckets else deployment.max_batch_rows
    proven = reading.finding == "apart"
    evidence = try_rows(run, tensors.inputs, [min(_MIDDLE, most), most], sample, proven=proven)
    _warn_of_differences(deployment.name, tensors, evidence, computed_in)
    if vouched:
        return _vouched(deployment.name, reading, evidence)
    return _weighed(reading, evidence)


def _weighed(reading: GraphAnalysis, evidence: Evidence) -> RowIsolation:
    proven = reading.finding == "apart"
    tested = f"tested with companions in {format_count(evidence.companions, 'batch', 'batches')}"
    if evidence.finding == "mixed":
        return RowIsolation(
            False,
            "tested",
            evidence.reason,
            evidence.companions,
            difference=evidence.difference,
            setting=_VOUCH,
        )
    if evidence.finding == "unknown":
        if proven:
            return RowIsolation(True, "read", "no operator lets a row see another", evidence.companions)
        return RowIsolation(
            False,
            "tested",
            f"its rows cannot be tried: {evidence.reason}",
            evidence.companions,
            setting=_SAMPLE,
        )
    if proven:
        return RowIsolation(
            True,
            "read",
            f"no operator lets a row see another, {tested}",
            evidence.companions,
            difference=evidence.difference,
        )
    return RowIsolation(
        True, "tested", tested, evidence.companions, not evidence.non_finite, evidence.difference
    )


def _vouched(name: str, reading: GraphAnalysis, evidence: Evidence) -> RowIsolation:
    """Believe the operator, and warn if the evidence contradicts it."""
    against = reading.reason if reading.finding == "mixed" else ""
    if not evidence.has_rows:
        raise LoadFailed(
            f"{name} cannot be batched as batching: rows says, for {evidence.reason}; set batching: none"
        )
    if evidence.finding == "mixed":
        against = evidence.reason
    if against:
        logger.warning("%s is batched because batching is rows, though %s", name, against)
    reason = "batching is rows: the operator vouches for it"
    return RowIsolation(
        True, "said", reason, evidence.companions, not evidence.non_finite, evidence.difference
    )


def _warn_of_differences(
    name: str, tensors: ModelTensors, evidence: Evidence, computed_in: str | None
) -> None:
    if evidence.difference is None:
        return
    if not evidence.difference:
        logger.info("%s: answers in a batch equal answers alone", name)
        return
    bound = max((_BOUNDS.get(info.dtype, 0.0) for info in tensors.outputs), default=0.0)
    usual = evidence.difference <= max(bound, _REDUCED.get(computed_in or "", 0.0))
    remark = ""
    if not usual:
        remark = "; that is much for their type"
    elif evidence.difference > bound:
        remark = f"; that is usual for {computed_in}"
    logger.log(
        logging.INFO if usual else logging.WARNING,
        "%s: answers in a batch differ from answers alone by at most %.2g of the largest number%s",
        name,
        evidence.difference,
        remark,
    )
