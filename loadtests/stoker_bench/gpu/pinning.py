"""Host memory that a GPU can read and write directly."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.runtimes.cuda_memory import Cuda, CudaError, load_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["pinned"]


@contextmanager
def pinned(
    array: NDArray[Any], find_cuda: Callable[[], Cuda] = lambda: load_cuda("")
) -> Iterator[NDArray[Any] | None]:
    """Give a copy of an array in pinned memory for the time of the block; None where CUDA grants none."""
    try:
        cuda = find_cuda()
        address = cuda.host_alloc(array.nbytes)
    except CudaError:
        yield None
        return
    try:
        memory: Any = (ctypes.c_ubyte * array.nbytes).from_address(address)
        copy = np.frombuffer(memory, array.dtype).reshape(array.shape)
        copy[...] = array
        yield copy
    finally:
        cuda.host_free(address)
