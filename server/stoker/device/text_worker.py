"""The worker of a model of texts: rows of like length run together, and times are learned by tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stoker.device.batch import Batch
from stoker.device.instance import Instance
from stoker.device.text_lengths import TextLengths
from stoker.device.worker import Worker
from stoker.runtimes.base import TokenRuntime


class TextWorker(Worker):
    """Serves a model of texts whose costs have been measured."""

    def __init__(self, runtime: TokenRuntime, *arguments: Any, **options: Any) -> None:
        """Make the first instance; see `Worker`."""
        super().__init__(runtime, *arguments, **options)
        assert runtime.costs is not None, "they were measured"
        doorbells = self.doorbells
        self._lengths = TextLengths(
            runtime.costs, lambda lane, numbers: doorbells.lanes[lane].arena.inputs[0][numbers, 0]
        )
        self.cap.policy = msgspec.structs.replace(self.cap.policy, lengths=self._lengths)

    def _run(self, instance: Instance, batch: Batch) -> None:
        # Once they are handed back, their frontend may write other texts to these rows.
        lengths = np.concatenate(
            [batch.lanes[block.lane].arena.inputs[0][block.numbers, 0] for block in batch.blocks]
        )
        began_ns = self._clock_ns()
        super()._run(instance, batch)
        with self._counter.lock:
            self._lengths.learn(lengths, self._clock_ns() - began_ns)
