"""Rows on a GPU by ONNX Runtime: captured graphs, bound memory, or plain calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import onnxruntime

from stoker.errors import LoadFailed, without_frames
from stoker.runtimes.base import GPU_INSTANCES, OutOfMemory, Runtime, likely_sizes
from stoker.runtimes.cuda import CudaRuntime, load_cuda
from stoker.runtimes.execution_choice import check_still_runs, choose_fastest, feasible_sizes
from stoker.runtimes.onnx.capture import GraphSessions, SessionGraphs
from stoker.runtimes.onnx.executions import CopiedExecution, bind
from stoker.runtimes.onnx.fixed_sessions import FixedSessions
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.pinned_memory import StagedMemory
from stoker.runtimes.pipeline import PipelinedExecution, check_pipeline
from stoker.tensors import Signature

logger = logging.getLogger(__name__)

_MOST_NODES: Final = 8
_ONE_SESSION: Final = "one session for all sizes"


class SharedSession:
    """One session for all sizes; see `GraphSessions`. Its weights and its memory serve all of them."""

    shares_memory = True

    def __init__(self, sessions: OnnxSessions) -> None:
        self._sessions = sessions
        self._session: onnxruntime.InferenceSession | None = None
        self._sizes: set[int] = set()

    def open(self, rows: int, stream: int) -> onnxruntime.InferenceSession:
        """See `GraphSessions`."""
        if self._session is None:
            self._session = self._sessions.open_with_graphs(stream)
        self._sizes.add(rows)
        return self._session

    def close(self, rows: int) -> None:
        """See `GraphSessions`; the session is closed with its last size."""
        self._sizes.discard(rows)
        if not self._sizes:
            self._session = None


def cuda_runtime(
    sessions: OnnxSessions,
    session: onnxruntime.InferenceSession,
    signature: Signature,
    cuda: Callable[[], CudaRuntime] | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Runtime:
    """Make the runtime of a model of rows, on the thread that will run it.

    Captured graphs are used if the model and the settings allow them: no other execution is faster.

    Args:
        sessions: Opens further sessions, and has the settings.
        cuda: Finds the CUDA runtime of this process; by default the one that ONNX Runtime has loaded.

    Raises:
        LoadFailed: The execution of the settings cannot run.
    """
    deployment = sessions.deployment
    plain = CopiedExecution(session, signature)
    wanted = deployment.acceleration.execution
    if wanted == "copied":
        return plain
    sizes = likely_sizes(deployment)
    find_cuda = cuda or _onnxruntimes_cuda
    if wanted in ("auto", "graph") and deployment.acceleration.provider == "cuda" and deployment.captures:
        # Without buckets, sizes are added later by measuring.
        captured = _capture(sessions, plain, deployment.batch_buckets or (1,), find_cuda, clock_ns)
        if captured is not None:
            return captured
    feasible = feasible_sizes(deployment.name, plain, sizes)
    if not feasible:
        # The first batch reports the lack of memory.
        return plain
    rows = max(deployment.max_batch_rows, *feasible)

    def memory() -> StagedMemory:
        return StagedMemory(find_cuda(), signature.inputs, signature.outputs, rows)

    candidates = {"bound": lambda: bind(session, signature, memory, feasible)}
    return choose_fastest(deployment.name, plain, candidates, feasible, clock_ns, forced=wanted == "bound")


def _capture(
    sessions: OnnxSessions,
    plain: CopiedExecution,
    sizes: Sequence[int],
    find_cuda: Callable[[], CudaRuntime],
    clock_ns: Callable[[], int],
) -> PipelinedExecution | None:
    """Capture a model with the first kind of sessions that agrees with plain calls; None if none does.

    Raises:
        LoadFailed: The model cannot be captured, and the setting is `execution: graph`; or the attempt has broken the
            device.
    """
    deployment = sessions.deployment
    name = deployment.name
    failure: Exception | None = None
    try:
        cuda = find_cuda()
        for kind, open_sessions in _kinds_of_sessions(sessions, plain, cuda):
            try:
                runtime = _capture_in(open_sessions(), sessions, plain, sizes, cuda, clock_ns)
            except Exception as error:  # noqa: BLE001  # a model or CUDA may raise any error
                logger.info("%s: execution graph, %s, is left out: %s", name, kind, error)
                # The failure of a session for one size is the reason to report.
                failure = without_frames(error)
                if isinstance(error, OutOfMemory):
                    break
                check_still_runs(name, plain, min(sizes), "graph", error)
                if isinstance(error, LoadFailed) and kind != _ONE_SESSION:
                    break
            else:
                runtime.choice = f"execution graph, {kind}, {runtime.depth} batches in flight"
                return runtime
    except LoadFailed:
        raise
    except Exception as error:  # noqa: BLE001  # without CUDA's own library
        logger.info("%s: execution graph is left out: %s", name, error)
        failure = without_frames(error)
    advice = _explain_failure(sessions, plain, min(sizes)) if isinstance(failure, LoadFailed) else ""
    if deployment.acceleration.execution == "graph":
        raise LoadFailed(f"{name} cannot run with execution: graph: {failure}{advice}") from failure
    if advice:
        logger.info("%s: it cannot be captured as a CUDA graph%s", name, advice)
    return None


def _capture_in(
    opened: GraphSessions,
    sessions: OnnxSessions,
    plain: CopiedExecution,
    sizes: Sequence[int],
    cuda: CudaRuntime,
    clock_ns: Callable[[], int],
) -> PipelinedExecution:
    """Capture a model in sessions of one kind; raise unless it agrees with plain calls."""
    deployment = sessions.deployment
    depth = deployment.instances or GPU_INSTANCES
    runtime = PipelinedExecution(
        deployment.name,
        plain.signature,
        cuda,
        SessionGraphs(opened),
        sizes,
        deployment.max_batch_rows,
        depth,
        clock_ns,
    )
    check_pipeline(deployment.name, runtime, plain)
    return runtime


def _kinds_of_sessions(
    sessions: OnnxSessions, plain: CopiedExecution, cuda: CudaRuntime
) -> Iterator[tuple[str, Callable[[], GraphSessions]]]:
    """Yield the kinds of sessions with graphs, and how to open them; the first needs the least memory."""
    yield _ONE_SESSION, lambda: SharedSession(sessions)
    first, fixed = plain.first_axes(), plain.fixed_axes()
    likely = likely_sizes(sessions.deployment)
    yield (
        "a session for each size with shared weights",
        lambda: FixedSessions(sessions, first, likely, cuda, fixed),
    )
    yield "a session for each size", lambda: FixedSessions(sessions, first, likely, None, fixed)


def _explain_failure(sessions: OnnxSessions, plain: CopiedExecution, rows: int) -> str:
    """Return the end of a sentence: the nodes that run on the CPU although batches have one size, and the remedy."""
    fixed = FixedSessions(sessions, plain.first_axes(), [rows], None, plain.fixed_axes())
    try:
        nodes = fixed.nodes_on_cpu(rows)
    except Exception as error:  # noqa: BLE001  # it is only for a line of the log
        logger.debug("%s: the placement of its nodes is unknown: %s", sessions.deployment.name, error)
        return ""
    if not nodes:
        return ""
    others = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
    return (
        f": with batches of one size these nodes still run on the CPU: {', '.join(nodes[:_MOST_NODES])}{others}; "
        "export the model with operators and types that ONNX Runtime has for CUDA, without branches and loops"
    )


def _onnxruntimes_cuda() -> CudaRuntime:
    version: str = getattr(onnxruntime, "cuda_version", "") or ""
    return load_cuda(version.partition(".")[0])
