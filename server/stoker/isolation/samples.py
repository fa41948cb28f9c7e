"""Requests that a model is known to answer: finding them, and first batches made of them.

What is made up need not be valid: an encoded image, an index, a text that a model parses. A sample is. Most models
have none, so what reads files, with the decoders of all protocols, is imported where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from stoker.servable import Servable
from stoker.tensors import TensorInfo, TensorSpec

__all__ = ["Sample", "find_sample_feeds", "first_rows"]

_RECORDED: Final = Path("assets.extra", "tf_serving_warmup_requests")


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that a model is known to answer.

    Attributes:
        feeds: The inputs by name, of the model's dtypes; strings are `object` arrays of `bytes`. All can be written.
        source: Where it is from, as the operator is told.
    """

    feeds: Mapping[str, np.ndarray]
    source: str

    @property
    def rows(self) -> int | None:
        """The length of all first axes; None if they differ, so that they can be no batch axis."""
        counts = {array.shape[0] if array.ndim else None for array in self.feeds.values()}
        return counts.pop() if len(counts) == 1 else None


def find_sample_feeds(servable: Servable, inputs: Sequence[TensorInfo]) -> Sample | None:
    """Find a request that a model is known to answer.

    It is the first of these: the file that the setting names, `sample_input.json` beside the model, a SavedModel's
    `assets.extra/tf_serving_warmup_requests`, Triton's `model_warmup`.

    Args:
        servable: The model; no entry script, which gets its sample as it is.
        inputs: What it takes.

    Raises:
        LoadFailed: What is there cannot be read, or does not fit the model.
        InvalidSettings: The sample is an image, and the model cannot take what its image input says.
    """
    file = servable.sample_file
    if file is not None:
        from stoker.isolation.sample_files import read_sample

        return Sample(read_sample(file, inputs, model=servable.name, image=servable.terms.image), file.name)
    recorded = servable.path / _RECORDED
    if servable.framework == "tensorflow" and recorded.is_file():
        from stoker.isolation.warm_up_requests import read_recorded_requests

        feeds = read_recorded_requests(recorded, inputs)
        if feeds is not None:
            return Sample(feeds, recorded.name)
    if servable.warm_up:
        from stoker.isolation.warm_up_requests import warm_up_feeds

        # Values of a file have been chosen by somebody, others by nobody.
        by_files = sorted(servable.warm_up, key=lambda request: all(i.file is None for i in request.inputs))
        return Sample(warm_up_feeds(by_files[0], inputs), f"model_warmup {by_files[0].name!r}")
    return None


def first_rows(
    specs: Sequence[TensorSpec], rows: int, sample: Mapping[str, np.ndarray] | None
) -> list[np.ndarray]:
    """Return inputs `[rows, *row_shape]` for the first batches of a model: its sample over and over, or zeros."""
    if sample is None:
        return [np.zeros((rows, *spec.shape), spec.dtype) for spec in specs]
    return [np.resize(sample[spec.name], (rows, *spec.shape)).astype(spec.dtype) for spec in specs]
