"""Finds requests that a model is known to answer, and makes its first batches of them.

Made-up inputs need not be valid: an encoded image, an index, a text that a model parses. A sample is valid. Most
models have none, so the module that reads files, with the decoders of all protocols, is imported only where needed.
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
        feeds: The inputs by name, of the model's dtypes; strings are `object` arrays of `bytes`. All are writable.
        source: Where it was found, shown to the operator.
    """

    feeds: Mapping[str, np.ndarray]
    source: str

    @property
    def rows(self) -> int | None:
        """The length of all first axes; None if they differ, in which case they are no batch axis."""
        counts = {array.shape[0] if array.ndim else None for array in self.feeds.values()}
        return counts.pop() if len(counts) == 1 else None


def find_sample_feeds(servable: Servable, inputs: Sequence[TensorInfo]) -> Sample | None:
    """Find a request that a model is known to answer.

    The first of these is used: the file that the setting names, `sample_input.json` beside the model, a SavedModel's
    `assets.extra/tf_serving_warmup_requests`, Triton's `model_warmup`.

    Args:
        servable: The model; not an entry script, which gets its sample undecoded.
        inputs: The model's inputs.

    Raises:
        LoadFailed: The sample cannot be read, or does not fit the model.
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

        # Requests with data from files are preferred: somebody has chosen their values.
        by_files = sorted(servable.warm_up, key=lambda request: all(i.file is None for i in request.inputs))
        return Sample(warm_up_feeds(by_files[0], inputs), f"model_warmup {by_files[0].name!r}")
    return None


def first_rows(
    specs: Sequence[TensorSpec], rows: int, sample: Mapping[str, np.ndarray] | None
) -> list[np.ndarray]:
    """Return inputs `[rows, *row_shape]` for the first batches of a model: its sample repeated, or zeros."""
    if sample is None:
        return [np.zeros((rows, *spec.shape), spec.dtype) for spec in specs]
    return [np.resize(sample[spec.name], (rows, *spec.shape)).astype(spec.dtype) for spec in specs]
