"""Bodies and answers of `stoker score` by protocols, beside what tests/http/test_score_command.py sends."""

import sys
from pathlib import Path

import numpy as np
import pytest

from stoker.commands.score_protocols import (
    Target,
    by_input,
    image_rows,
    media_type_of,
    member_for,
    plain_outputs,
)
from stoker.errors import InvalidSettings, OperatorError
from stoker_client import InvalidRows
from stoker_client.tensors import ModelTensors, TensorInfo

TABLE = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("protocol", "data", "member"),
    [
        ("v1", [[1]], "instances"),
        ("v1", {"x": [[1]]}, "inputs"),
        ("mlflow", [[1]], "inputs"),
        ("mlflow", TABLE, "dataframe_records"),
        ("mlflow", [{"b64": "eA=="}], "inputs"),
        ("torchserve", [[1]], "data"),
    ],
)
def test_rows_are_in_the_member_that_the_protocol_has_for_them(
    protocol: str, data: object, member: str
) -> None:
    """By their form."""
    assert member_for(protocol, data) == member


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


def test_images_are_strings_of_the_protocol(tmp_path: Path) -> None:
    """Bytes where it has bytes, else TensorFlow Serving's form."""
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert image_rows([tmp_path / "a.png"], "grpc") == [b"\x89PNG"]
    assert image_rows([tmp_path / "a.png"], "v1") == [{"b64": "iVBORw=="}]


def test_outputs_are_plain() -> None:
    """Of one output its rows, of several by name; bytes are text."""
    strings = np.array([b"x", b"\xff"], object)
    assert plain_outputs({"y": strings}) == ["x", "\ufffd"]
    assert plain_outputs({"y": np.ones(1), "z": strings}) == {"y": [1.0], "z": ["x", "\ufffd"]}


def test_media_types_are_those_of_names() -> None:
    """What nobody knows is bytes."""
    names = ("a.JPG", "a.npy", "a.webp", "a.json", "a.wav", "a")
    assert [media_type_of(Path(name)) for name in names] == [
        *("image/jpeg", "application/x-npy", "image/webp", "application/json", "audio/x-wav"),
        "application/octet-stream",
    ]


def test_grpc_needs_its_port_and_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told with what to do."""
    for uri in ("http://127.0.0.1:8080/score", "grpc://127.0.0.1"):
        with pytest.raises(InvalidSettings, match="needs the gRPC port"):
            Target("grpc", uri, "m", None, None).score([[1]])
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(OperatorError, match="pip install grpcio protobuf"):
        Target("grpc", "grpc://127.0.0.1:1", "m", None, None).score([[1]])
