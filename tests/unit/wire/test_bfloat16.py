"""Numbers of `bfloat16` in JSON: read as any numbers, written with the digits of their exact values."""

import json
import math
import sys

import numpy as np
import pytest

from stoker.errors import InvalidInput, LoadFailed, NonFiniteOutput
from stoker.gateway.rows.row_inputs import check_ranges, narrow_ranges
from stoker.tensors import Signature, TensorInfo, TensorSpec
from stoker.wire.scoring import ScoringDecoder, encode_each, encode_outputs
from stoker.wire.tensor_json import as_tensor

SPEC = TensorSpec("x", "bfloat16", (2,))
SIGNATURE = Signature((SPEC,), (SPEC,))


def halves(*rows: tuple[float, float]) -> np.ndarray:
    return np.array(rows, SPEC.numpy_dtype)


def test_rows_are_read_and_written_as_numbers() -> None:
    """A caller gets back the model's number, with its 8 bits of precision in full."""
    (rows,) = ScoringDecoder(SIGNATURE).decode(b'{"data": [[0.1, 2], [-3, 1e-30]]}')
    answer = rows.astype(SPEC.numpy_dtype)
    written = json.loads(encode_outputs([SPEC], [answer]))
    assert written == [[0.10009765625, 2.0], [-3.0, float(answer[1, 1])]]
    assert [json.loads(text) for text in encode_each(answer)] == [[row] for row in written]


def test_numbers_that_json_cannot_hold_are_written_as_is_set() -> None:
    """As words, as null, or not at all."""
    rows = halves((math.nan, math.inf))
    assert encode_outputs([SPEC], [rows]) == b"[[NaN, Infinity]]"
    assert json.loads(encode_outputs([SPEC], [rows], "null")) == [[None, None]]
    with pytest.raises(NonFiniteOutput):
        encode_outputs([SPEC], [rows], "error")


@pytest.mark.parametrize("number", [3.4e38, -3.4e38])
def test_numbers_that_round_to_infinity_are_refused(number: float) -> None:
    """Numpy raises where a number overflows, but not for these."""
    ranges = narrow_ranges([SPEC])
    check_ranges(ranges, [np.array([[3.38e38, 0]])])
    with pytest.raises(InvalidInput, match="A number of 'x' does not fit bfloat16"):
        check_ranges(ranges, [np.array([[number, 0]])])
    with pytest.raises(InvalidInput, match="too large for bfloat16"):
        as_tensor([[number]], TensorInfo("x", "bfloat16", (-1, 1)))


def test_dtype_is_named_with_its_package_where_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with it is not loaded."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(
        LoadFailed, match="bfloat16 needs ml_dtypes, which is not installed; install it with: "
    ):
        TensorInfo("x", "bfloat16", (-1, 2))
