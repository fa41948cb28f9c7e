"""Finds a request that a model is known to answer, and makes the first batches of the model from it.

Made-up inputs need not be valid: an encoded image, an index, a text that a model parses. A sample is valid. Most
models have none, so `sample_files` with the decoders of all protocols is imported only where needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from stoker.deployment import Deployment
from stoker.samples.warm_up_requests import make_warm_up_feeds, read_recorded_requests
from stoker.tensors import TensorInfo, TensorSpec
from stoker.wire.texts import TEXT

_RECORDED: Final = Path("assets.extra", "tf_serving_warmup_requests")


class Sample(Struct, frozen=True):
    """A request that a model is known to answer.

    Attributes:
        feeds: The inputs by name, of the model's dtypes; strings are `object` arrays of `bytes`. All are writable.
    """

    feeds: Mapping[str, np.ndarray]
    source: str

    @property
    def rows(self) -> int | None:
        """The length of all first axes; None if they differ, in which case they are no batch axis."""
        counts = {array.shape[0] if array.ndim else None for array in self.feeds.values()}
        return counts.pop() if len(counts) == 1 else None


def find_sample_feeds(deployment: Deployment, inputs: Sequence[TensorInfo]) -> Sample | None:
    """Find a request that a model is known to answer.

    The first of these is used: the file that the setting names, `sample_input.json` beside the model, a SavedModel's
    `assets.extra/tf_serving_warmup_requests`, Triton's `model_warmup`. Of a model that takes texts they are rows of
    tokens, and there always are some.

    Args:
        deployment: The model; not an entry script, which gets its sample undecoded.
    """
    if deployment.text is not None and [info.name for info in inputs] == [TEXT]:
        from stoker.samples.text_sample import find_text_sample

        rows, source = find_text_sample(deployment, deployment.text)
        return Sample({TEXT: rows}, source)
    file = deployment.sample_file
    if file is not None:
        from stoker.samples.sample_files import read_sample

        return Sample(read_sample(file, inputs, model=deployment.name, image=deployment.image), file.name)
    recorded = deployment.path / _RECORDED
    if deployment.framework == "tensorflow" and recorded.is_file():
        feeds = read_recorded_requests(recorded, inputs)
        if feeds is not None:
            return Sample(feeds, recorded.name)
    if deployment.warm_up:
        # Requests with data from files are preferred: somebody has chosen their values.
        by_files = sorted(deployment.warm_up, key=lambda request: all(i.file is None for i in request.inputs))
        return Sample(make_warm_up_feeds(by_files[0], inputs), f"model_warmup {by_files[0].name!r}")
    return None


def first_rows(
    specs: Sequence[TensorSpec], rows: int, sample: Mapping[str, np.ndarray] | None
) -> list[np.ndarray]:
    """Return inputs `[rows, *row_shape]` for the first batches of a model: its sample repeated, or zeros."""
    if sample is None:
        return [np.zeros((rows, *spec.shape), spec.dtype) for spec in specs]
    return [np.resize(sample[spec.name], (rows, *spec.shape)).astype(spec.dtype) for spec in specs]
