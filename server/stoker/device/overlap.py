"""Measures how much throughput a device gains from two batches at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from stoker.device.device_turns import DeviceTurns
from stoker.device.model_threads import ModelThreads

logger = logging.getLogger(__name__)

WORTH: Final = 0.3
"""Two batches run concurrently if that gives at least this many times the throughput."""
_TIMES: Final = 3

_Begin = Callable[[], "Future[int]"]


def measure_overlap(turns: DeviceTurns, models: Sequence[ModelThreads]) -> None:
    """Find out how many batches should run concurrently, where a model has a target and two instances exist.

    Args:
        turns: The turns of the device; one at a time if nothing is measured.
        models: The models of this process, before any of them serves.
    """
    begins = [begin for model in models for begin in model.full_batches()]
    if len(begins) < 2 or not any(model.wants_targets for model in models):
        return
    try:
        gained = gain(begins)
    except Exception as error:  # noqa: BLE001  # it serves all the same, one batch at a time
        logger.warning("the gain of running two batches at once could not be measured: %s", error)
        return
    at_once = 2 if gained >= WORTH else 1
    logger.info("two batches at once: %.0f %% more throughput; running %d at once", 100 * gained, at_once)
    turns.set_turns(at_once)


def gain(begins: Sequence[_Begin]) -> float:
    """The throughput of two concurrent batches relative to one after the other.

    Args:
        begins: Functions that start a batch on a thread of its own, at least two; the two longest batches are run
            together.
    """
    alone_ns = [min(begin().result() for _ in range(_TIMES)) for begin in begins]
    longest = sorted(range(len(begins)), key=alone_ns.__getitem__)[-2:]
    together_ns = min(
        max(took.result() for took in [begins[place]() for place in longest]) for _ in range(_TIMES)
    )
    return sum(alone_ns[place] for place in longest) / max(1, together_ns) - 1
