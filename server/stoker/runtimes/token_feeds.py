"""The inputs of a model of texts, made of rows of tokens, and found by the names of Hugging Face's exporters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.tensors import TensorInfo
from stoker.wire.texts import SEGMENT_BITS

_IDS, _MASK, _SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
_ID_BITS: Final = (1 << SEGMENT_BITS) - 1
_AXES: Final = 2


class TokenFeeds:
    """Makes the inputs of a model from rows of tokens, as `stoker.wire.texts` has them.

    Attributes:
        pad_id: The token that fills up shorter rows.
        fixed_tokens: The length of all rows, where the model has one; 0 if it takes any.
    """

    def __init__(self, inputs: Sequence[TensorInfo], pad_id: int = 0) -> None:
        """Raise LoadFailed for inputs that are not ids of tokens, with their mask and segments."""
        self._inputs = inputs
        self.pad_id = pad_id
        names = [info.name for info in inputs]
        fitting = [info for info in inputs if len(info.shape) == _AXES and info.kind in "iu"]
        sizes = {info.shape[1] for info in fitting}
        if _IDS not in names or not {_IDS, _MASK, _SEGMENTS}.issuperset(names) or fitting != [*inputs]:
            raise LoadFailed(
                f"texts need {_IDS} [rows, tokens], and perhaps {_MASK} and {_SEGMENTS}; its inputs are "
                f"{', '.join(map(str, inputs))}"
            )
        self.fixed_tokens = max(0, *sizes)

    def feeds(self, rows: np.ndarray, tokens: int) -> dict[str, np.ndarray]:
        """Return the inputs of rows `int32[n, 1 + max_tokens]`, padded to a length in tokens."""
        words = rows[:, 1 : 1 + tokens]
        if words.shape[1] < tokens:
            words = np.pad(words, ((0, 0), (0, tokens - words.shape[1])))
        mask = np.arange(tokens) < rows[:, :1]
        made = {
            _IDS: np.where(mask, words & _ID_BITS, self.pad_id),
            _MASK: mask,
            _SEGMENTS: words >> SEGMENT_BITS,
        }
        return {info.name: made[info.name].astype(info.dtype) for info in self._inputs}
