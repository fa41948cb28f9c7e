"""Messages of protobuf are read by the numbers of their fields."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from stoker.isolation.onnx.graph import read_model
from stoker.wire.protobuf import MalformedMessage
from stoker.wire.protobuf_message import Message


def test_message_fields_are_read_by_their_numbers() -> None:
    """Repeated fields, packed or not, keep their order; the last value of another field counts."""
    tensor = onnx.TensorProto(name="w", dims=[2, 3], data_type=1, float_data=[0.5, 1.5])
    message = Message(tensor.SerializeToString() + onnx.TensorProto(name="again").SerializeToString())
    assert message.integers(1) == [2, 3]
    assert message.integer(2) == 1
    assert (message.texts(8), message.text(8)) == (["w", "again"], "again")
    assert message.size_bytes(4, 8) == 14
    assert len(message.joined(4)) == 8
    assert message.is_whole


def test_missing_message_fields_are_empty() -> None:
    """A missing field is empty or 0, as in protobuf."""
    message = Message(b"")
    assert not message.has(1)
    assert (message.text(1), message.content(1), message.integer(1)) == ("", b"", 0)
    assert list(message.messages(1)) == []
    assert message.message(1).message(2).texts(3) == []


def test_message_of_broken_bytes_is_refused() -> None:
    """A field that is longer than its message raises an error."""
    with pytest.raises(MalformedMessage, match="longer than its message"):
        Message(b"\x0a\x05x")


@pytest.mark.parametrize("value", [[1] * 20_000, [b""] * 20_000, [0.5] * 5_000])
def test_long_list_attribute_is_not_kept(value: list[int] | list[bytes] | list[float]) -> None:
    """Millions of values of an attribute are not read, whatever their sizes are."""
    node = helper.make_node("Any", ["x"], ["y"], short=[1, 2], long=value)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, None)])
    (read,) = read_model(helper.make_model(graph).SerializeToString()).graph.nodes
    assert read.attributes == {"short": (1, 2), "long": None}
