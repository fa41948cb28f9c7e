"""A deployment that is loaded: its runtime, its batch sizes, and the times of its load."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from stoker.device.batch_sizes import BatchSizes
from stoker.device.canary import Canary
from stoker.device.kept_sizes import KeepSizes
from stoker.runtimes.base import Runtime
from stoker.tensors import Signature


class LoadedModel(Struct, frozen=True):
    """A deployment that is ready to serve.

    Attributes:
        runtime: The runtime, for the thread that has loaded it.
        load_s: Seconds until it was loaded.
        warm_up_s: Seconds that its first batches took.
        max_batch_rows: Most rows in one batch.
        sizes: The allowed sizes of its batches.
        instances: How many batches may run at the same time, each on a thread with a runtime of its own.
        canary: Checks whether its device still works; None if no inputs can be made up for it.
        sample: Sample rows that it is known to answer; None to use zeros.
        full_batch_s: Seconds that a batch of `max_batch_rows` takes when warm; 0 if not measured.
        later_sizes: Further sizes of batches, to be prepared while it serves.
        keep_sizes: Keeps the choice among all sizes; None if `later_sizes` are an earlier choice.
        warm_up_runs: How often a batch of each size runs at first, also in each further instance.
    """

    runtime: Runtime
    load_s: float
    warm_up_s: float
    max_batch_rows: int
    sizes: BatchSizes
    instances: int
    canary: Canary | None
    sample: Mapping[str, np.ndarray] | None = None
    full_batch_s: float = 0.0
    warm_up_runs: int = 1
    later_sizes: tuple[int, ...] = ()
    keep_sizes: KeepSizes | None = None

    @property
    def signature(self) -> Signature:
        """The signature of the deployment."""
        return self.runtime.signature
