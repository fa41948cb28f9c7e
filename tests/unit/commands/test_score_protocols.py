"""Bodies and answers of `stoker score` by protocols, beside what tests/http/test_score_command.py sends."""

from pathlib import Path

import numpy as np
import pytest

from stoker.commands.score_protocols import by_input, media_type_of, plain_outputs
from stoker_client import InvalidRows
from stoker_client.tensors import ModelTensors, TensorInfo

TABLE = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_rows_become_inputs_by_name() -> None:
    """Of tables each column is one; single values get the axis that the model has, strings too."""
    infos = (TensorInfo("a", "INT64", (-1, 1)), TensorInfo("b", "BYTES", (-1, 1)))
    model, single = ModelTensors("m", infos, ()), ModelTensors("m", infos[1:], ())
    assert by_input(model, TABLE) == {"a": [1, 2], "b": ["x", "y"]}
    strings = by_input(single, [b"\xff\x00", b"y\x00"])["b"]
    assert strings.tolist() == [[b"\xff\x00"], [b"y\x00"]]
    with pytest.raises(InvalidRows, match=r"by the names of its inputs.*: a, b"):
        by_input(model, [[1]])
    with pytest.raises(InvalidRows, match="different names"):
        by_input(model, [{"a": 1}, {"b": 1}])


def test_outputs_are_plain() -> None:
    """Of one output its rows, of several by name; bytes are text."""
    strings = np.array([b"x", b"\xff"], object)
    assert plain_outputs({"y": strings}) == ["x", "\ufffd"]
    assert plain_outputs({"y": np.ones(1), "z": strings}) == {"y": [1.0], "z": ["x", "\ufffd"]}


def test_media_types_are_those_of_names() -> None:
    """An unknown name is bytes."""
    names = ("a.JPG", "a.npy", "a.webp", "a.json", "a.wav", "a")
    assert [media_type_of(Path(name)) for name in names] == [
        *("image/jpeg", "application/x-npy", "image/webp", "application/json", "audio/x-wav"),
        "application/octet-stream",
    ]
