"""A puppet of PyTorch on a GPU: tensors lie in the memory of a puppet of CUDA, and kernels run in its streams."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.cuda_puppets import PuppetCudart

__all__ = ["PuppetOutOfMemory", "PuppetTensor", "PuppetTorch"]


class PuppetOutOfMemory(RuntimeError):
    """PyTorch's error if its allocator finds no memory."""


class PuppetTensor:
    """An array of the device: memory, or a function that computes it when its stream reaches it."""

    def __init__(self, torch: PuppetTorch, shape: tuple[int, ...], value: Callable[[], np.ndarray]) -> None:
        self.torch, self.shape, self.value = torch, shape, value

    def copy_(self, other: PuppetTensor) -> None:
        """Begin to copy, as a kernel of the current stream."""
        assert self.torch.inference, "autograd would keep what it needs for gradients"
        self.torch.launch(lambda: np.copyto(self.value(), other.value()))

    def times(self, factor: float) -> PuppetTensor:
        """The product with a number."""
        return PuppetTensor(self.torch, self.shape, lambda: self.value() * np.float32(factor))


class PuppetGraph:
    """A captured graph.

    Attributes:
        work: The kernels that it repeats; None before it is captured.
    """

    def __init__(self, torch: PuppetTorch) -> None:
        self.torch = torch
        self.work: list[Callable[[], None]] | None = None
        self.pool: int | None = None

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        torch = self.torch
        assert capture_error_mode == "thread_local", "threads that wait for batches would fail"
        assert torch.current is not None, "graphs must be captured on a stream of their own"
        assert pool not in torch.spoilt, "a capture has failed in this pool"
        users = torch.pools.get(pool, 0)
        assert users or pool == torch.fresh_pool, "nothing uses this pool any more"
        torch.fresh_pool = None
        torch.pools[pool] = users + 1
        torch.capturing, self.pool = [], pool

    def capture_end(self) -> None:
        torch = self.torch
        work, torch.capturing = torch.capturing, None
        if torch.spoils:
            torch.spoils = False
            torch.spoilt.add(self.pool)
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.work = work

    def replay(self) -> None:
        assert self.work is not None, "it was never captured, or it was reset"
        if self.torch.run_fails is not None:
            raise self.torch.run_fails
        for work in self.work:
            self.torch.launch(work)
        self.torch.replays += 1

    def reset(self) -> None:
        self.work = None
        assert self.pool is not None
        self.torch.pools[self.pool] -= 1


class PuppetTorch(SimpleNamespace):
    """The used functions of `torch` on a GPU.

    Attributes:
        current: The current stream; None for the default one.
        pools: The number of graphs in each pool of memory.
        spoilt: Pools in which a capture has failed.
        capturing: The kernels of the current capture; None if there is none.
        refuses_capture: Whether an operation cannot be captured.
        most_rows: The largest number of rows that fit into the memory.
        factor: The factor of the model, captured or not.
        run_fails: The error of a replay and of the model.
        emptied: How often unused memory was freed.
    """

    OutOfMemoryError = PuppetOutOfMemory
    bfloat16 = "bfloat16"

    def __init__(self, cudart: PuppetCudart) -> None:
        super().__init__()
        self.cudart = cudart
        self.version = SimpleNamespace(cuda="13.0")
        self.cuda = SimpleNamespace(
            ExternalStream=self._external,
            stream=self._entered,
            graph_pool_handle=self._new_pool,
            CUDAGraph=lambda: PuppetGraph(self),
            empty_cache=self._empty_cache,
        )
        self.current: int | None = None
        self.inference = False
        self.pools: dict[int, int] = {}
        self.fresh_pool: int | None = None
        self.spoilt: set[int | None] = set()
        self.spoils = False
        self.capturing: list[Callable[[], None]] | None = None
        self.refuses_capture = False
        self.most_rows = 1 << 20
        self.factor: Callable[[bool], float] = lambda _: 2
        self.run_fails: Exception | None = None
        self.replays = 0
        self.emptied = 0
        self.computed: list[int] = []

    def launch(self, work: Callable[[], None]) -> None:
        """Put a kernel into the current stream, or into the graph that is captured there."""
        if self.capturing is not None:
            self.capturing.append(work)
        else:
            assert self.current is not None, "a kernel in the default stream waits for nothing"
            self.cudart.enqueue(self.current, "run", work)

    def compute(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The model: y = 2 x."""
        tensor = inputs["x"]
        self.computed.append(tensor.shape[0])
        if self.run_fails is not None:
            raise self.run_fails
        if tensor.shape[0] > self.most_rows:
            raise PuppetOutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.capturing is not None and self.refuses_capture:
            self.spoils = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return {"y": tensor.times(self.factor(self.capturing is not None))}

    def as_tensor(self, memory: Any, device: str) -> PuppetTensor:
        """Return memory of the device as a tensor."""
        assert device == "cuda"
        described = memory.__cuda_array_interface__
        shape, (address, read_only) = described["shape"], described["data"]
        assert (np.dtype(described["typestr"]), read_only, described["strides"]) == (np.float32, False, None)
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return PuppetTensor(self, shape, lambda: np.ctypeslib.as_array(pointer, shape))

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        before, self.inference = self.inference, True
        yield
        self.inference = before

    def _external(self, stream: int) -> Any:
        return SimpleNamespace(stream=stream, synchronize=lambda: self.cudart.finish(stream))

    def _entered(self, external: Any) -> Any:
        return _Entered(self, external.stream)

    def _new_pool(self) -> int:
        self.fresh_pool = len(self.pools) + 1
        return self.fresh_pool

    def _empty_cache(self) -> None:
        assert self.capturing is None, "that would synchronise"
        self.emptied += 1


class _Entered(nullcontext[None]):
    """A context that makes a stream the current one; it can be entered repeatedly."""

    def __init__(self, torch: PuppetTorch, stream: int) -> None:
        super().__init__()
        self.torch, self.stream = torch, stream

    def __enter__(self) -> None:
        self.before, self.torch.current = self.torch.current, self.stream

    def __exit__(self, *_: object) -> None:
        self.torch.current = self.before
