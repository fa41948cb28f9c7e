"""Infer requests of gRPC as messages: what a `ModelInferRequest` says, and where its raw contents lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from stoker.errors import BodyTooLarge, MalformedBody
from stoker.gateway.grpc.messages import ModelInferRequest
from stoker.wire.oip_parameters import check_id

__all__ = ["RequestMessage", "RequestReader"]

_NO_REQUEST: Final = "the message is no ModelInferRequest"
_MAX_PARTS: Final = 10_000
"""Inputs, outputs, parameters and raw contents of one message: each costs a hundred times its two bytes."""
_MAX_ODD_BYTES: Final = 4 << 20
"""A message that only the library can read, which makes objects of all of it."""
_MAX_LENGTH_BITS: Final = 28
_MAX_LAYOUTS: Final = 256
_MAX_SAID_BYTES: Final = 4096
_MAX_BLANKS: Final = 16

_Span = tuple[int, int]
"""Where something begins and ends."""


class RequestMessage(NamedTuple):
    """A `ModelInferRequest` that has been received.

    Attributes:
        model_name, model_version, id: What it says.
        raw: Its raw contents.
        form: The rest of it as bytes: what callers repeat with every request.
        size_bytes: How long all of it is.
    """

    model_name: str
    model_version: str
    id: str
    raw: list[memoryview]
    form: bytes
    size_bytes: int

    @classmethod
    def read(cls, content: bytes) -> RequestMessage:
        """Take a message apart; its raw contents stay where they are.

        Raises:
            MalformedBody: The bytes are no message, or its id is too long.
            BodyTooLarge: It has too many parts.
        """
        try:
            return cls.cut(content, *_take_apart(content))
        except (IndexError, ValueError):
            # Not as clients write it. It can be a message all the same, and the library is to say that.
            return cls.read_by_library(content)

    @classmethod
    def cut(cls, content: bytes, texts: Sequence[_Span], raw: Sequence[_Span], form: bytes) -> RequestMessage:
        """Cut a message where its parts lie.

        Raises:
            MalformedBody: Its id is too long.
            ValueError: A text is not UTF-8.
        """
        (name, version, identifier), view = texts, memoryview(content)
        check_id(identifier[1] - identifier[0])
        return cls(
            content[slice(*name)].decode(),
            content[slice(*version)].decode(),
            content[slice(*identifier)].decode(),
            [view[start:stop] for start, stop in raw],
            form,
            len(content),
        )

    @classmethod
    def read_by_library(cls, content: bytes) -> RequestMessage:
        """Take a message apart that is not as clients write it; raises as `read`."""
        if len(content) > _MAX_ODD_BYTES:
            raise MalformedBody(f"{_NO_REQUEST}, or has fields that are not known here")
        try:
            message = ModelInferRequest.FromString(content)
        except DecodeError:
            raise MalformedBody(_NO_REQUEST) from None
        raw, identifier = [memoryview(part) for part in message.raw_input_contents], message.id
        check_id(len(identifier.encode()))
        del message.raw_input_contents[:]
        message.id = ""
        form = message.SerializeToString()
        return cls(message.model_name, message.model_version, identifier, raw, form, len(content))

    def parsed(self, most_bytes: int) -> Any:
        """Return its form as a `ModelInferRequest`.

        Args:
            most_bytes: How long the form may be.

        Raises:
            MalformedBody: It is none.
            BodyTooLarge: It has more typed contents than are read.
        """
        if len(self.form) > most_bytes:
            raise BodyTooLarge(
                f"typed contents above {most_bytes >> 20} MiB are not read: send raw_input_contents"
            )
        try:
            return ModelInferRequest.FromString(self.form)
        except DecodeError:
            raise MalformedBody(_NO_REQUEST) from None


class _Layout(NamedTuple):
    """Where the parts of a message lie, which is the same for all that agree with it beside its id and raw contents.

    Attributes:
        said: All of it but its id and raw contents, the lengths of those too: parts, and where they begin.
        model_name, model_version: What it says.
        identifier, raw: Where its id and its raw contents lie.
        form: As of `RequestMessage`.
    """

    said: tuple[tuple[bytes, int], ...]
    model_name: str
    model_version: str
    identifier: slice
    raw: tuple[slice, ...]
    form: bytes


class RequestReader:
    """Reads messages as `RequestMessage.read` does.

    Callers repeat theirs with other data and another id. A message is read field by field, by their lengths. So one
    that is as long as another, and has the same bytes but for what lies in its id and its raw contents, has the same
    fields in the same places.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}

    def read(self, content: bytes) -> RequestMessage:
        """Take a message apart; raises as `RequestMessage.read`."""
        layout = self._layouts.get(len(content))
        if layout is not None:
            said, name, version, identifier, raw, form = layout
            for part, start in said:
                if not content.startswith(part, start):
                    break
            else:
                view = memoryview(content)
                try:
                    asked = content[identifier].decode()
                except UnicodeDecodeError:
                    return RequestMessage.read_by_library(content)
                return RequestMessage(name, version, asked, [view[span] for span in raw], form, len(content))
        try:
            texts, raw_spans, form = _take_apart(content)
            message = RequestMessage.cut(content, texts, raw_spans, form)
        except (IndexError, ValueError):
            return RequestMessage.read_by_library(content)
        self._remember(content, message, texts[2], raw_spans)
        return message

    def _remember(self, content: bytes, message: RequestMessage, identifier: _Span, raw: list[_Span]) -> None:
        blanks = sorted([identifier, *raw]) if identifier[1] else raw
        said_bytes = len(content) - sum(stop - start for start, stop in blanks)
        if not raw or len(blanks) > _MAX_BLANKS or said_bytes > _MAX_SAID_BYTES:
            return
        said, start = [], 0
        for begin, end in blanks:
            said.append((content[start:begin], start))
            start = end
        said.append((content[start:], start))
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        self._layouts[len(content)] = _Layout(
            tuple((part, place) for part, place in said if part),
            message.model_name,
            message.model_version,
            slice(*identifier),
            tuple(slice(*span) for span in raw),
            message.form,
        )


def _take_apart(content: bytes) -> tuple[list[_Span], list[_Span], bytes]:
    """Where model name, version and id of a `ModelInferRequest` lie, and its raw contents; and the rest as bytes.

    All fields of this message are length-delimited: a byte that names the field, the length as a varint, the content.
    The library would copy the raw contents twice, and they may have 100 MiB.

    Raises:
        IndexError: The bytes end within a length.
        ValueError: There is another field, or the bytes end within one.
        BodyTooLarge: There are too many fields.
    """
    view, end = memoryview(content), len(content)
    texts: list[_Span] = [(0, 0)] * 3
    raw: list[_Span] = []
    rest: list[memoryview] = []
    start = 0
    for _ in range(_MAX_PARTS + 1):
        if start == end:
            return texts, raw, b"".join(rest)
        at = start + 1
        size, shift = 0, 0
        while (byte := content[at]) > 0x7F and shift < _MAX_LENGTH_BITS:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        at += 1
        stop = at + (size | byte << shift)
        if stop > end or byte > 0x7F:
            raise ValueError("a field is longer than the message")
        match content[start]:
            case 0x3A:
                raw.append((at, stop))
            case 0x1A:
                texts[2] = (at, stop)
            case 0x0A | 0x12 as tag:
                texts[tag >> 4] = (at, stop)
                rest.append(view[start:stop])
            case 0x22 | 0x2A | 0x32:
                rest.append(view[start:stop])
            case tag:
                raise ValueError(f"the field {tag >> 3} of type {tag & 7} is none of this message")
        start = stop
    raise BodyTooLarge(f"the message has more than {_MAX_PARTS} inputs, outputs and parameters")
