"""Requests of TensorFlow Serving's PredictionService, as far as they can be read without their model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from stoker.errors import BodyTooLarge, MalformedBody
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.grpc.tensor_protos import TensorBytes
from stoker.wire.protobuf import BYTES, MalformedMessage, fields_of

__all__ = ["ExamplesMessage", "ModelSpec", "PredictMessage", "spec_of"]

_Spec: Final = message("ModelSpec", SERVING)
_UNREADABLE: Final = "the message is no request of this method"
_MAX_PARTS: Final = 10_000
"""The most inputs and outputs of a request."""
_MAX_ENTRY_PARTS: Final = 16
_MAX_EXAMPLES: Final = 1 << 16
_MAX_SPEC_BYTES: Final = 1 << 16
_SPEC: Final = 1
_INPUTS, _FILTER = 2, 3
_KEY, _VALUE = 1, 2
_INPUT: Final = 2
_LIST, _LIST_WITH_CONTEXT = 1, 2
_EXAMPLES, _CONTEXT = 1, 2


class ModelSpec(NamedTuple):
    """Which model is asked.

    Attributes:
        model_name: Its name.
        model_version: The number of its version; empty for none.
        label: A label of the version; empty for none.
        signature_name: The signature; empty for the default.
    """

    model_name: str
    model_version: str
    label: str
    signature_name: str


def spec_of(proto: Any) -> ModelSpec:
    """Return what a `ModelSpec` message says."""
    version = str(proto.version.value) if proto.HasField("version") else ""
    return ModelSpec(proto.name, version, proto.version_label, proto.signature_name)


class PredictMessage(NamedTuple):
    """A `PredictRequest`.

    Attributes:
        spec: Which model is asked.
        inputs: Its tensors by name.
        wanted: The outputs that are wanted; none means all.
    """

    spec: ModelSpec
    inputs: dict[str, TensorBytes]
    wanted: tuple[str, ...]

    @classmethod
    def read(cls, content: bytes) -> PredictMessage:
        """Read a message; its tensors stay where they are.

        Raises:
            MalformedBody: It is none.
            BodyTooLarge: It has too many parts.
        """
        specs, inputs, wanted = list[bytes](), {}, []
        for number, begin, end in _parts(content, 0, len(content), _MAX_PARTS):
            if number == _SPEC:
                specs.append(content[begin:end])
            elif number == _INPUTS:
                name, tensor = _entry(content, begin, end)
                inputs[name] = tensor
            elif number == _FILTER:
                wanted.append(_text(content[begin:end]))
        return cls(_read_spec(b"".join(specs)), inputs, tuple(wanted))


class ExamplesMessage(NamedTuple):
    """A `ClassificationRequest` or `RegressionRequest`.

    Attributes:
        spec: Which model is asked.
        examples: Serialized `tf.train.Example`.
        context: A serialized example whose features all of them have; empty for none.
    """

    spec: ModelSpec
    examples: list[bytes]
    context: bytes

    @classmethod
    def read(cls, content: bytes) -> ExamplesMessage:
        """Read a message.

        Raises:
            MalformedBody: It is none.
            BodyTooLarge: It has too many examples.
        """
        parts = list(_parts(content, 0, len(content), _MAX_PARTS))
        spec = b"".join(content[begin:end] for number, begin, end in parts if number == _SPEC)
        inputs = [(begin, end) for number, begin, end in parts if number == _INPUT]
        if len(inputs) != 1:
            raise MalformedBody("Input is empty: the message needs one")
        return cls(_read_spec(spec), *_examples(content, *inputs[0]))


def _examples(content: bytes, begin: int, end: int) -> tuple[list[bytes], bytes]:
    """The examples and the context of an `Input`."""
    kinds = list(_parts(content, begin, end, _MAX_ENTRY_PARTS))
    if len(kinds) != 1 or kinds[0][0] not in (_LIST, _LIST_WITH_CONTEXT):
        raise MalformedBody("Input is empty: it has an example_list, or an example_list_with_context")
    kind, start, stop = kinds[0]
    parts = list(_parts(content, start, stop, _MAX_EXAMPLES))
    examples = [content[at:until] for number, at, until in parts if number == _EXAMPLES]
    if kind == _LIST:
        return examples, b""
    # Put together, two messages are one that has the fields of both.
    return examples, b"".join(content[at:until] for number, at, until in parts if number == _CONTEXT)


def _entry(content: bytes, begin: int, end: int) -> tuple[str, TensorBytes]:
    name, tensor = "", TensorBytes(b"", 0, 0)
    for number, start, stop in _parts(content, begin, end, _MAX_ENTRY_PARTS):
        if number == _KEY:
            name = _text(content[start:stop])
        elif number == _VALUE:
            tensor = TensorBytes(content, start, stop)
    return name, tensor


def _parts(content: bytes, begin: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message that have a length: number, and where the content begins and ends.

    Raises:
        MalformedBody: It is no message.
        BodyTooLarge: It has more fields than `most`, counting others too.
    """
    try:
        for count, (number, wire, _, start, stop) in enumerate(fields_of(content, begin, end)):
            if count == most:
                raise BodyTooLarge(f"the message has more than {most} parts")
            if wire == BYTES:
                yield number, start, stop
    except (MalformedMessage, IndexError):
        raise MalformedBody(_UNREADABLE) from None


def _read_spec(content: bytes) -> ModelSpec:
    if len(content) > _MAX_SPEC_BYTES:
        raise BodyTooLarge("the model_spec is too long")
    try:
        spec = spec_of(_Spec.FromString(content))
    except DecodeError:
        raise MalformedBody(_UNREADABLE) from None
    if not spec.model_name:
        raise MalformedBody("Missing ModelSpec: name the model in model_spec.name")
    return spec


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise MalformedBody(_UNREADABLE) from None
