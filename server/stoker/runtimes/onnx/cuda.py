"""Rows on a GPU by ONNX Runtime: captured graphs, bound memory, or plain calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import onnxruntime

from stoker.errors import LoadFailed
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

    Captured graphs are taken where the model can and may be captured: no other execution is faster.

    Args:
        sessions: Opens further sessions, and knows the settings.
        cuda: Finds the CUDA runtime of this process; by default that which ONNX Runtime has loaded.

    Raises:
        LoadFailed: An execution that was asked for cannot run.
    """
    deployment = sessions.deployment
    plain = CopiedExecution(session, signature)
    wanted = deployment.acceleration.execution
    if wanted == "copied":
        return plain
    sizes = likely_sizes(deployment)
    find_cuda = cuda or _onnxruntimes_cuda
    if wanted in ("auto", "graph") and deployment.acceleration.provider == "cuda" and deployment.captures:
        # Without sizes to prepare, further ones are added by measuring.
        captured = _capture(sessions, plain, deployment.batch_buckets or (1,), find_cuda, clock_ns)
        if captured is not None:
            return captured
    feasible = feasible_sizes(deployment.name, plain, sizes)
    if not feasible:
        # The first batch says that there is no memory, as it does without this choice.
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
    """Capture a model in the first way that gives what plain calls give; None if it cannot be captured.

    Raises:
        LoadFailed: It cannot, and `execution: graph` asks for it; or the device is broken since it was tried.
    """
    deployment = sessions.deployment
    name, signature = deployment.name, plain.signature
    depth = deployment.instances or GPU_INSTANCES
    failure: Exception | None = None
    try:
        cuda = find_cuda()
        for way, opened in _ways(sessions, plain, cuda):
            try:
                graphs = SessionGraphs(opened())
                runtime = PipelinedExecution(
                    name, signature, cuda, graphs, sizes, deployment.max_batch_rows, depth, clock_ns
                )
                check_pipeline(name, runtime, plain)
            except Exception as error:  # noqa: BLE001  # whatever a model or CUDA ends in
                logger.info("%s: execution graph, %s, is left out: %s", name, way, error)
                # What a session of one size lacks is what says why.
                failure = error
                if isinstance(error, OutOfMemory):
                    break
                check_still_runs(name, plain, min(sizes), "graph", error)
                if isinstance(error, LoadFailed) and way != _ONE_SESSION:
                    break
            else:
                runtime.choice = f"execution graph, {way}, {depth} batches in flight"
                return runtime
    except LoadFailed:
        raise
    except Exception as error:  # noqa: BLE001  # without CUDA's own library
        logger.info("%s: execution graph is left out: %s", name, error)
        failure = error
    advice = _what_prevents_it(sessions, plain, min(sizes)) if isinstance(failure, LoadFailed) else ""
    if deployment.acceleration.execution == "graph":
        raise LoadFailed(f"{name} cannot run with execution: graph: {failure}{advice}") from failure
    if advice:
        logger.info("%s: it cannot be captured as a CUDA graph%s", name, advice)
    return None


def _ways(
    sessions: OnnxSessions, plain: CopiedExecution, cuda: CudaRuntime
) -> Iterator[tuple[str, Callable[[], GraphSessions]]]:
    """The ways to open sessions with graphs; the first needs the least memory."""
    yield _ONE_SESSION, lambda: SharedSession(sessions)
    first, fixed = plain.first_axes(), plain.fixed_axes()
    likely = likely_sizes(sessions.deployment)
    yield (
        "a session for each size with shared weights",
        lambda: FixedSessions(sessions, first, likely, cuda, fixed),
    )
    yield "a session for each size", lambda: FixedSessions(sessions, first, likely, None, fixed)


def _what_prevents_it(sessions: OnnxSessions, plain: CopiedExecution, rows: int) -> str:
    """Name the nodes that run on the CPU although batches have one size, and the remedy, as the end of a sentence."""
    fixed = FixedSessions(sessions, plain.first_axes(), [rows], None, plain.fixed_axes())
    try:
        nodes = fixed.nodes_on_cpu(rows)
    except Exception as error:  # noqa: BLE001  # it is for a line of the log alone
        logger.debug("%s: its nodes cannot be told: %s", sessions.deployment.name, error)
        return ""
    if not nodes:
        return ""
    more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
    return (
        f": with batches of one size these nodes still run on the CPU: {', '.join(nodes[:_MOST_NODES])}{more}; "
        "export the model with operators and types that ONNX Runtime has for CUDA, without branches and loops"
    )


def _onnxruntimes_cuda() -> CudaRuntime:
    version: str = getattr(onnxruntime, "cuda_version", "") or ""
    return load_cuda(version.partition(".")[0])
