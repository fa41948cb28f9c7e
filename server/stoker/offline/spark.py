"""Models in Spark: functions for `DataFrame.mapInPandas`, with one loaded model in each Python worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from stoker.offline.predictor import Predictor

_loaded: Final[dict[str, Predictor]] = {}
_loading: Final = threading.Lock()


def spark(
    model: str | Path, device: str = "auto", **options: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make the function that scores the partitions of a frame, for `DataFrame.mapInPandas`.

    The model is loaded once in each Python worker, which Spark keeps for further tasks. It has to be found there: a
    registered model in a workspace that all nodes see, or a path. Where a task has been given a GPU, it uses that.

    Returns:
        A function from data frames to data frames.
    """
    named = str(model)

    def score(frames: Iterator[Any]) -> Iterator[Any]:
        predictor = _predictor(named, device, options)
        for frame in frames:
            # Spark may pass frames without rows, which a model cannot score.
            if len(frame):
                yield predictor(frame)

    return score


def _predictor(model: str, device: str, options: dict[str, Any]) -> Predictor:
    """The model of this worker, loaded if it is not there."""
    device = _device_of_task() if device == "auto" else device
    key = repr((model, device, sorted(options.items())))
    with _loading:
        if key not in _loaded:
            _loaded[key] = Predictor(model, device, **options)
        return _loaded[key]


def _device_of_task() -> str:
    from pyspark import TaskContext

    task = TaskContext.get()
    gpus = {} if task is None else task.resources()
    return f"cuda:{gpus['gpu'].addresses[0]}" if "gpu" in gpus else "auto"
