"""Host memory that a GPU can read and write directly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.runtimes.cuda import CudaError, CudaRuntime, load_cuda


@contextmanager
def pinned(
    array: NDArray[Any], find_cuda: Callable[[], CudaRuntime] = lambda: load_cuda("")
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
