"""Messages that are read where earlier ones had their parts: always as if nothing had been remembered."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import StokerError
from stoker.gateway.grpc import requests
from stoker.gateway.grpc.messages import ModelInferRequest
from stoker.gateway.grpc.requests import RequestMessage, RequestReader

TEXTS = st.sampled_from(["", "m", "digits", "Ä"])
IDS = st.sampled_from(["", "7", "8", "request 7", "request 8", "Ö"])
RAW = st.lists(
    st.sampled_from([b"", b"\0" * 8, b"\x3a\x02ab\x1a\x01", b"\x80" * 8, bytes(range(200))]), max_size=3
)


def message(name: str, version: str, identifier: str, raw: list[bytes], timeout: int = 0) -> bytes:
    """A message, as the library writes it."""
    made = ModelInferRequest(model_name=name, model_version=version, id=identifier, raw_input_contents=raw)
    for _ in raw:
        made.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    if timeout:
        made.parameters["timeout"].int64_param = timeout
    content: bytes = made.SerializeToString()
    return content


def outcome(read: Any, content: bytes) -> Any:
    """Return the content of a message, or the error that refuses it."""
    try:
        return read(content)
    except StokerError as error:
        return type(error), str(error)


MESSAGES = st.builds(message, TEXTS, TEXTS, IDS, RAW, st.sampled_from([0, 0, 5]))


@given(MESSAGES, MESSAGES, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3))
@STEADY
def test_reading_a_message_does_not_depend_on_earlier_ones(
    first: bytes, second: bytes, damages: list[tuple[int, int]]
) -> None:
    """After another one, after itself, and with any bytes of it damaged."""
    reader = RequestReader()
    damaged = bytearray(second)
    for place, byte in damages:
        if damaged:
            damaged[place % len(damaged)] = byte
    for content in (first, second, first, bytes(damaged), second, bytes(damaged)):
        assert outcome(reader.read, content) == outcome(RequestMessage.read, content)


def test_other_data_and_another_id_are_read_without_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what agrees with a message that was read is; ids that are no text are left to the library."""
    reader = RequestReader()
    assert reader.read(message("m", "3", "id 1", [b"ab", b"cdef"])).raw == [b"ab", b"cdef"]
    monkeypatch.setattr(requests, "_split", lambda _: pytest.fail("it has been taken apart"))
    read = reader.read(message("m", "3", "id 2", [b"xy", b"\x1a\x01\x3a\0"]))
    assert (read.model_name, read.model_version, read.id) == ("m", "3", "id 2")
    assert read.raw == [b"xy", b"\x1a\x01\x3a\0"]
    broken = message("m", "3", "id 2", [b"xy", b"cdef"]).replace(b"id 2", b"id\xff2")
    with pytest.raises(DecodeError):
        ModelInferRequest.FromString(broken)
    with pytest.raises(StokerError, match="no ModelInferRequest"):
        reader.read(broken)
    for other in (("n", "3", "id 2"), ("m", "4", "id 2")):
        with pytest.raises(pytest.fail.Exception):
            reader.read(message(*other, [b"xy", b"cdef"]))


def test_messages_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many are remembered, and none that says much, has many raw contents, or has none."""
    monkeypatch.setattr(requests, "_MAX_LAYOUTS", 3)
    reader = RequestReader()
    for size in range(10):
        reader.read(message("m", "", "", [bytes(size)]))
        assert len(reader.layouts) <= 3
    kept = dict(reader.layouts)
    reader.read(message("m" * 5000, "", "", [b"ab"]))
    reader.read(message("m", "", "", [b"ab"] * 17))
    reader.read(message("m", "", "", []))
    assert reader.layouts == kept
