"""The memory of GPUs that is in use, as NVML reads it."""

from __future__ import annotations

from stoker.gpu.nvml import gpus, read_memory
from stoker_bench.errors import BenchedServerError


def used_bytes() -> int:
    """Return the used memory of all GPUs, of other processes too.

    Raises:
        BenchedServerError: There is none.
    """
    try:
        uuids = [gpu.uuid for gpu in gpus()]
    except OSError:
        uuids = []
    if not uuids:
        raise BenchedServerError("there is no GPU whose memory could be read")
    return sum(memory.used_bytes for memory in read_memory(uuids).values())
