"""Host memory that a GPU copies fast."""

import numpy as np
import pytest

from stoker_bench.gpu import pinned_memory as pinning


def test_host_memory_is_pinned_where_cuda_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the rows lies in CUDA's memory and is given back; without CUDA there is none."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    place = np.zeros(6, np.float32)
    freed: list[int] = []

    class Puppet:
        def host_alloc(self, size_bytes: int) -> int:
            assert size_bytes == rows.nbytes
            return place.ctypes.data

        def host_free(self, address: int) -> None:
            freed.append(address)

    with pinning.pinned(rows, Puppet) as copy:
        assert (copy == rows).all()
        assert copy.ctypes.data == place.ctypes.data
    assert freed == [place.ctypes.data]
    with pinning.pinned(rows) as copy:
        assert copy is None
