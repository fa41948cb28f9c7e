"""Answers in which scores are objects by the names of their classes, as a ZipMap gives them.

`{"cat": 0.2, "dog": 0.8}` in place of `[0.2, 0.8]`. The numbers are written as they are in lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from stoker.non_finite import WORDS, NonFinite
from stoker.tensors import TensorInfo, TensorSpec
from stoker.wire.non_finite import rewritten
from stoker.wire.tensor_json import to_lists, writable

__all__ = ["ColumnNames", "named_columns"]


def named_columns(array: np.ndarray, labels: Sequence[str]) -> Any:
    """Return an array as nested lists, with objects in the place of the innermost ones.

    Args:
        array: Numbers, `[..., columns]`.
        labels: What the columns are called.

    Returns:
        Lists of dictionaries of numpy's own numbers, which orjson writes as it writes those of arrays.

    Raises:
        ValueError: There are more columns than names, or fewer.
    """
    if array.ndim > 1:
        return [named_columns(part, labels) for part in array]
    if array.shape != (len(labels),):
        raise ValueError(f"a row of shape {list(array.shape)} has no column for each of {len(labels)} names")
    return dict(zip(labels, array, strict=True))


class ColumnNames:
    """Writes the Azure scoring protocol's answers of a model with such outputs.

    Its methods stand for the functions of `wire.scoring` and `wire.tensor_json` with their names.
    """

    def __init__(self, outputs: Sequence[TensorInfo]) -> None:
        self._names = [info.name for info in outputs]
        self._labels = {info.name: info.labels for info in outputs if info.as_objects}

    def encode_tensors(self, outputs: Mapping[str, np.ndarray], non_finite: NonFinite = WORDS) -> bytes:
        """Return the only output as lists, or an object of outputs by name.

        Raises:
            NonFiniteOutput: A number is not finite, and that is to be refused.
        """
        listed: Any = {name: self._listed(name, array) for name, array in outputs.items()}
        if len(outputs) == 1:
            (listed,) = listed.values()
        text = orjson.dumps(listed, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
        return rewritten(text, listed, _plain, non_finite) if b"null" in text else text

    def encode_outputs(
        self, specs: Sequence[TensorSpec], outputs: Sequence[np.ndarray], non_finite: NonFinite = WORDS
    ) -> bytes:
        """Return the same of outputs in the order of `specs`."""
        named = {spec.name: array for spec, array in zip(specs, outputs, strict=True)}
        return self.encode_tensors(named, non_finite)

    def encode_each(self, rows: np.ndarray, non_finite: NonFinite = WORDS) -> list[bytes]:
        """Return for each row of the only output what it gives for that row alone."""
        (name,) = self._names
        # A name may hold what stands between rows, so that the text of all of them cannot be cut.
        return [
            self.encode_tensors({name: rows[index : index + 1]}, non_finite) for index in range(len(rows))
        ]

    def _listed(self, name: str, array: np.ndarray) -> Any:
        labels = self._labels.get(name)
        return writable(array) if labels is None else named_columns(array, labels)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else to_lists(value)
