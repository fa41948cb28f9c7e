"""Messages between the supervisor and its processes are read as they were written, in both directions."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.control import device_messages, frontend_messages, handover_messages
from stoker.control.channel import Codec
from stoker.control.frontend_messages import AdminRules
from stoker.keys.keyring import Keys
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorSpec

MODULES = (device_messages, frontend_messages)
DIRECTIONS = {
    "to a device process": (
        device_messages.SUPERVISOR_END,
        device_messages.DEVICE_END,
        device_messages.ToDevice,
    ),
    "from a device process": (
        device_messages.DEVICE_END,
        device_messages.SUPERVISOR_END,
        device_messages.FromDevice,
    ),
    "to a frontend": (
        frontend_messages.SUPERVISOR_END,
        frontend_messages.FRONTEND_END,
        frontend_messages.ToFrontend,
    ),
    "from a frontend": (
        frontend_messages.FRONTEND_END,
        frontend_messages.SUPERVISOR_END,
        frontend_messages.FromFrontend,
    ),
}
SENT = [
    pytest.param(sender, receiver, message, id=f"{message.__name__} {direction}")
    for direction, (sender, receiver, messages) in DIRECTIONS.items()
    for message in get_args(messages)
]
PARTS = {
    "AdminRules",
    "GrpcRules",
    "LaterRules",
    "PipelineRules",
    "RoutedVersion",
    "ServerAddress",
    "ServerRules",
    "SharedMemoryRules",
}
"""Dataclasses that are in messages and are none."""

texts = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
CONSTRAINED: Mapping[type, st.SearchStrategy[Any]] = {
    TensorSpec: st.one_of(
        st.builds(
            TensorSpec,
            texts,
            st.sampled_from(sorted(NUMERIC_DTYPES)),
            st.lists(st.integers(0, 9), max_size=3).map(tuple),
        ),
        st.builds(TensorSpec, texts, st.just("uint8"), st.tuples(st.integers(0, 1 << 40)), st.just(True)),
    ),
    Keys: st.builds(Keys, *[st.text("abcXYZ019", min_size=32, max_size=40)] * 2),
    Path: st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).map(Path),
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False),
    str: texts,
    NoneType: st.none(),
}
"""Types whose values follow rules that their annotations do not say."""


@functools.cache
def values_of(declared: Any) -> st.SearchStrategy[Any]:
    """Any value of a field of this type."""
    origin, arguments = get_origin(declared), get_args(declared)
    if declared in CONSTRAINED:
        return CONSTRAINED[declared]
    if declared is Any:
        return json_values
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(texts, values_of(arguments[1]), max_size=2)
    types = get_type_hints(declared)
    fields = msgspec.structs.fields if issubclass(declared, msgspec.Struct) else dataclasses.fields
    return st.builds(declared, **{field.name: values_of(types[field.name]) for field in fields(declared)})


@pytest.mark.parametrize(("sender", "receiver", "message"), SENT)
@settings(max_examples=25)
@given(data=st.data())
def test_each_message_survives_encoding_and_decoding(
    sender: Codec[Any, Any], receiver: Codec[Any, Any], message: type, data: st.DataObject
) -> None:
    """Each message comes back with all its fields, in the types that it was made of."""
    written = data.draw(values_of(message))
    read = receiver.decode(sender.encode(written))
    assert read == written
    assert repr(read) == repr(written), "a list is no tuple, and a text is no path"


@pytest.mark.parametrize("module", MODULES)
def test_every_message_has_one_direction(module: ModuleType) -> None:
    """A message in no union of senders can be neither sent nor received."""
    defined = {
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    directed = [
        message.__name__
        for _, _, messages in DIRECTIONS.values()
        for message in get_args(messages)
        if message.__module__ == module.__name__
    ]
    assert sorted(directed) == sorted(defined - PARTS)


def test_the_other_directions_messages_are_refused() -> None:
    """The sender refuses; the receiver lists its messages, as a process of another version may send others."""
    unload = device_messages.UnloadModel(3)
    with pytest.raises(TypeError, match="UnloadModel is not a message that this process sends"):
        device_messages.DEVICE_END.encode(unload)  # type: ignore[arg-type]  # that is the point
    packet = device_messages.SUPERVISOR_END.encode(unload)
    with pytest.raises(
        ValueError, match=r"'UnloadModel' is not one of BatchingStopped, .* version of Stoker"
    ):
        device_messages.SUPERVISOR_END.decode(packet)


@dataclass(frozen=True)
class Numbers:
    """A message with a field of a type that msgspec does not know."""

    numbers: complex


def test_type_that_no_message_can_hold_is_refused_by_both_ends() -> None:
    """A field of another type is a fault of the program, which its first message shows."""
    codec: Codec[Numbers, Numbers] = Codec(Numbers, Numbers)
    with pytest.raises(TypeError, match="messages cannot hold <class 'complex'>"):
        codec.encode(Numbers(3j))
    with pytest.raises(ValueError, match="messages cannot hold <class 'complex'>"):
        codec.decode(msgspec.msgpack.encode(["Numbers", {"numbers": 3}]))


def test_keys_are_not_shown() -> None:
    """A message may be in the log, or in the traceback of a test; a key may not."""
    rules = AdminRules(polls=False, needs_key=True, key="a secret", local=True)
    assert "secret" not in repr(rules)


def test_cached_properties_of_a_signature_are_not_sent() -> None:
    """Only the fields of a signature are sent, not its cached properties."""
    signature = Signature((TensorSpec("x", "float32", (2,)),), ())
    assert signature.inputs[0].row_bytes == 8
    assert signature.model_tensors is not None
    loaded = device_messages.Loaded(0, signature, 0.5, 0.25, 8)
    packet = device_messages.DEVICE_END.encode(loaded)
    assert b"model_tensors" not in packet
    assert device_messages.SUPERVISOR_END.decode(packet) == loaded


def test_a_server_takes_over_from_one_of_an_earlier_version() -> None:
    """The two servers of a reload may be of different versions: their messages are JSON, with fields by name."""
    earlier = b'["Labels", {"by_model": {"digits": {"stable": 3}}}]'
    labels = handover_messages.SUCCESSOR_END.decode(earlier)
    assert labels == handover_messages.Labels({"digits": {"stable": 3}})
    packet = handover_messages.SUCCESSOR_END.encode(handover_messages.Sockets(last=True))
    assert json.loads(packet) == ["Sockets", {"last": True}]
