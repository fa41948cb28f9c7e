"""The inputs of a model of texts."""

import numpy as np
import pytest

from stoker.errors import LoadFailed
from stoker.runtimes.token_feeds import TokenFeeds
from stoker.tensors import TensorInfo
from stoker.wire.texts import SEGMENT_BITS

SECOND = 1 << SEGMENT_BITS
ROWS = np.array([[3, 7, 8, 9 | SECOND, 0], [1, 5, 0, 0, 0]], np.int32)


def infos(*names: str, shape: tuple[int, ...] = (-1, -1), dtype: str = "int64") -> list[TensorInfo]:
    return [TensorInfo(name, dtype, shape) for name in names]


def test_feeds_of_rows() -> None:
    """Ids and segments are parted, and the mask covers the padding, which is the padding token."""
    feeds = TokenFeeds(infos("token_type_ids", "input_ids", "attention_mask", dtype="int32"), 2).feeds(
        ROWS, 4
    )
    assert {name: array.tolist() for name, array in feeds.items()} == {
        "token_type_ids": [[0, 0, 1, 0], [0, 0, 0, 0]],
        "input_ids": [[7, 8, 9, 2], [5, 2, 2, 2]],
        "attention_mask": [[1, 1, 1, 0], [1, 0, 0, 0]],
    }
    assert {array.dtype for array in feeds.values()} == {np.dtype(np.int32)}


def test_feeds_are_longer_than_rows_if_the_model_is() -> None:
    """A model of one length gets it, also where settings allow fewer tokens."""
    feeds = TokenFeeds(infos("input_ids", shape=(-1, 6)), 0)
    assert feeds.fixed_tokens == 6
    assert feeds.feeds(ROWS, 6)["input_ids"].tolist() == [[7, 8, 9, 0, 0, 0], [5, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    "inputs",
    [
        infos("attention_mask"),
        infos("input_ids", "position_ids"),
        infos("input_ids", shape=(-1,)),
        infos("input_ids", dtype="float32"),
    ],
)
def test_other_inputs_are_refused(inputs: list[TensorInfo]) -> None:
    """The message has the inputs."""
    with pytest.raises(LoadFailed, match=f"its inputs are {inputs[0].name}"):
        TokenFeeds(inputs, 0)
