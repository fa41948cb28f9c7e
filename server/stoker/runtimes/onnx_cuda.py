"""Rows on a GPU by ONNX Runtime: plain calls, bound memory or CUDA graphs, whichever is asked for or is fastest."""

from __future__ import annotations

import time
from collections.abc import Callable

import onnxruntime

from stoker.runtimes.base import GPU_INSTANCES, Runtime
from stoker.runtimes.cuda_memory import Cuda, StagedMemory, load_cuda
from stoker.runtimes.fastest import choose_fastest, feasible_sizes
from stoker.runtimes.onnx_executions import CopiedExecution, bind, bind_with_graphs
from stoker.runtimes.onnx_sessions import OnnxSessions
from stoker.tensors import Signature

__all__ = ["cuda_runtime"]


def cuda_runtime(
    sessions: OnnxSessions,
    session: onnxruntime.InferenceSession,
    signature: Signature,
    cuda: Callable[[], Cuda] | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Runtime:
    """Make the runtime of a model of rows, on the thread that will run it.

    Args:
        sessions: Opens further sessions, and knows the settings.
        session: The session that is open already.
        signature: What it takes and gives.
        cuda: Finds the CUDA runtime of this process; by default that which ONNX Runtime has loaded.
        clock_ns: What executions are measured with.

    Raises:
        LoadFailed: An execution that was asked for cannot run.
    """
    servable = sessions.servable
    plain = CopiedExecution(session, signature)
    wanted = servable.acceleration.execution
    if wanted == "copied":
        return plain
    sizes = feasible_sizes(servable.name, plain, servable.batch_buckets or (servable.max_batch_rows,))
    if not sizes:
        # The first batch says that there is no memory, as it does without this choice.
        return plain
    rows = max(servable.max_batch_rows, *sizes)
    find_cuda = cuda or _onnxruntimes_cuda

    def memory() -> StagedMemory:
        return StagedMemory(find_cuda(), signature.inputs, signature.outputs, rows)

    def with_graphs() -> Runtime:
        def open_session() -> onnxruntime.InferenceSession:
            return sessions.open_with_graphs(servable.instances or GPU_INSTANCES)

        return bind_with_graphs(open_session, signature, memory, sizes)

    candidates: dict[str, Callable[[], Runtime]] = {"bound": lambda: bind(session, signature, memory, sizes)}
    if servable.acceleration.provider == "cuda":
        candidates["graph"] = with_graphs
    if wanted != "auto":
        candidates = {wanted: candidates[wanted]}
    return choose_fastest(servable.name, plain, candidates, sizes, clock_ns, forced=wanted != "auto")


def _onnxruntimes_cuda() -> Cuda:
    version: str = getattr(onnxruntime, "cuda_version", "") or ""
    return load_cuda(version.partition(".")[0])
