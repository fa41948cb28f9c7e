"""Rows on a GPU by PyTorch: a captured CUDA graph for each size of batches, or its kernels one by one."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import GPU_INSTANCES, OutOfMemory, Runtime
from stoker.runtimes.cuda import CudaRuntime, load_cuda
from stoker.runtimes.execution_choice import check_still_runs
from stoker.runtimes.integer_limits import Limits
from stoker.runtimes.pinned_memory import StagedTensor
from stoker.runtimes.pipeline import BatchSet, PipelinedExecution, check_pipeline
from stoker.runtimes.torch.model import is_out_of_memory

logger = logging.getLogger(__name__)

Compute = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Computes a batch of tensors on the device, by name, in the current stream."""

_WARM_UP_RUNS: Final = 3
"""Libraries choose their algorithms, and allocate memory of their own, in the first runs of a size."""


class TorchGraphs:
    """Graphs that PyTorch captures; they share one pool of memory; see `Graphs`."""

    def __init__(self, torch: Any, compute: Compute, least_rows: int, *, captures: bool) -> None:
        """Make an object without graphs.

        Args:
            least_rows: The smallest size that will be captured.
            captures: Whether graphs are captured; otherwise kernels are launched one by one in the same stream.
        """
        self.shares_memory = captures
        self._torch = torch
        self._compute = compute
        self._least_rows = least_rows
        self._is_tried = False
        self._pool: Any = None
        self._graphs: dict[int, Sequence[Any]] = {}

    def open(self, size: int, stream: int) -> None:
        """See `Graphs`; nothing takes seconds here."""

    def capture(self, size: int, sets: Sequence[BatchSet], stream: int) -> Sequence[Callable[[], None]]:
        """See `Graphs`."""
        cuda = self._torch.cuda
        external = cuda.ExternalStream(stream)
        try:
            if not self.shares_memory:
                runs = [self._bind(one, size) for one in sets]
                self._warm_up(runs[0], external)
                self._graphs[size] = []
                return [partial(self._launch, external, run) for run in runs]
            if not self._is_tried:
                # A failed capture keeps its memory, so a small one is tried first.
                least = self._bind(sets[0], min(size, self._least_rows))
                self._capture(least, external, cuda.graph_pool_handle())
                self._is_tried = True
            if self._pool is None:
                self._pool = cuda.graph_pool_handle()
            graphs = [self._capture(self._bind(one, size), external, self._pool) for one in sets]
        except Exception as error:
            # A pool in which a capture has failed cannot be used again.
            self._pool = None
            self._raise_if_out_of_memory(error)
            raise
        self._graphs[size] = graphs
        return [partial(_replay, cuda.stream(external), graph) for graph in graphs]

    def release(self, size: int) -> None:
        """See `Graphs`; the pool's memory is freed with the last size."""
        for graph in self._graphs.pop(size):
            graph.reset()
        if not self._graphs:
            self._pool = None
            self._torch.cuda.empty_cache()

    def _bind(self, batch_set: BatchSet, size: int) -> Callable[[], None]:
        """Return a function that computes the rows in the memory of a set."""
        inputs = {staged.name: self._tensor(staged, size) for staged in batch_set.inputs}
        outputs = {staged.name: self._tensor(staged, size) for staged in batch_set.outputs}

        def run() -> None:
            with self._torch.inference_mode():
                results = self._compute(inputs)
                for name, output in outputs.items():
                    if results[name].shape != output.shape:
                        raise ValueError(
                            f"it gives {name!r} of {list(results[name].shape)}, not of {list(output.shape)}"
                        )
                    output.copy_(results[name])

        return run

    def _tensor(self, staged: StagedTensor, size: int) -> Any:
        """Return the first rows of a tensor of a set as a tensor of PyTorch in the same memory."""
        is_bfloat16 = staged.dtype.name == "bfloat16"
        memory = _DeviceMemory(
            staged.device_address, (size, *staged.shape), np.dtype(np.int16) if is_bfloat16 else staged.dtype
        )
        tensor = self._torch.as_tensor(memory, device="cuda")
        return tensor.view(self._torch.bfloat16) if is_bfloat16 else tensor

    def _warm_up(self, run: Callable[[], None], external: Any) -> None:
        with self._torch.cuda.stream(external):
            for _ in range(_WARM_UP_RUNS):
                run()
        external.synchronize()

    def _capture(self, run: Callable[[], None], external: Any, pool: Any) -> Any:
        cuda = self._torch.cuda
        self._warm_up(run, external)
        # The pool cannot use the memory of the warm-up.
        cuda.empty_cache()
        graph = cuda.CUDAGraph()
        with _without_collection(), cuda.stream(external):
            # Other threads wait for batches meanwhile. Any other mode of capture would forbid that.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def _launch(self, external: Any, run: Callable[[], None]) -> None:
        try:
            with self._torch.cuda.stream(external):
                run()
        except Exception as error:
            self._raise_if_out_of_memory(error)
            raise

    def _raise_if_out_of_memory(self, error: Exception) -> None:
        if is_out_of_memory(self._torch, error):
            raise OutOfMemory(in_one_line(error)) from error


def _replay(stream: Any, graph: Any) -> None:
    # A graph is launched in the current stream, not in the stream of its capture.
    with stream:
        graph.replay()


class _DeviceMemory:
    """A description of GPU memory that libraries of arrays can read."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection, which may free memory of the GPU: CUDA forbids that in a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def cuda_runtime(
    torch: Any,
    deployment: Deployment,
    compute: Compute,
    plain: Runtime,
    limits: Limits,
    find_cuda: Callable[[], CudaRuntime] | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Runtime:
    """Make the runtime of a model of rows, on the thread that will run it: captured or, if that fails, eager.

    Args:
        compute: The model.
        plain: The model by plain calls. Its answers are correct, and it is the runtime if both pipelines fail.
        limits: The integers that the model takes. Batches are filled up with 0; a model that does not take 0 is not
            captured.
        find_cuda: Finds the CUDA runtime of this process; by default the one that PyTorch has loaded.

    Raises:
        LoadFailed: The execution of the settings cannot run, or an attempt has broken the device.
    """
    name, wanted = deployment.name, deployment.acceleration.execution
    takes_padding = all(least <= 0 <= most for least, most in limits.values())
    if wanted == "copied" or (wanted == "auto" and not takes_padding):
        return plain
    for execution in ("graph", "eager"):
        try:
            cuda = (find_cuda or partial(_pytorchs_cuda, torch))()
            return _pipeline(torch, deployment, compute, plain, limits, cuda, clock_ns, execution)
        except Exception as error:
            if wanted == "graph":
                raise LoadFailed(f"{name} cannot run with execution: graph: {in_one_line(error)}") from error
            if not isinstance(error, OutOfMemory):
                check_still_runs(name, plain, 1, execution, error)
            logger.info("%s: execution %s is left out: %s", name, execution, in_one_line(error))
    return plain


def _pipeline(
    torch: Any,
    deployment: Deployment,
    compute: Compute,
    plain: Runtime,
    limits: Limits,
    cuda: CudaRuntime,
    clock_ns: Callable[[], int],
    execution: str,
) -> PipelinedExecution:
    name, most = deployment.name, deployment.max_batch_rows
    # Without buckets, sizes are added later by measuring.
    sizes = deployment.batch_buckets or (1,)
    depth = deployment.instances or GPU_INSTANCES
    graphs = TorchGraphs(torch, compute, min(sizes), captures=execution == "graph")
    pipeline = PipelinedExecution(name, plain.signature, cuda, graphs, sizes, most, depth, clock_ns, limits)
    check_pipeline(name, pipeline, plain)
    pipeline.choice = f"execution {execution}, {depth} batches in flight"
    return pipeline


def _pytorchs_cuda(torch: Any) -> CudaRuntime:
    return load_cuda((torch.version.cuda or "").partition(".")[0])
