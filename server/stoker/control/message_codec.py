"""Encodes messages between processes as JSON; both ends use the same dataclass definitions."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

__all__ = ["Codec"]

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")
_Reader = Callable[[Any], Any]

_AS_THEY_ARE: Final = (str, int, float, bool, NoneType, Any)


class Codec(Generic[_Sent, _Received]):
    """Encodes the messages that one end of a channel sends, and decodes those that it receives.

    A message is a frozen dataclass. Its fields are of JSON types, `Path`, `Literal`, `tuple[X, ...]`, mappings with
    string keys, `X | None`, and dataclasses of such fields. `Any` is for values that are JSON already.
    """

    def __init__(self, sends: Any, receives: Any) -> None:
        """Take the classes of the messages.

        Args:
            sends: The class of messages that this end sends, or the union of the classes.
            receives: Likewise for messages that it receives.
        """
        self._sends: frozenset[type] = frozenset(_members(sends))
        self._receives = {_kind(message): message for message in _members(receives)}

    def encode(self, message: _Sent) -> bytes:
        """Encode a message.

        Raises:
            TypeError: This end does not send such messages, or a value cannot be encoded.
        """
        if type(message) not in self._sends:
            raise TypeError(f"{type(message).__name__} is not a message that this process sends")
        return json.dumps([_kind(type(message)), _fields_of(message)], default=_plain).encode()

    def decode(self, packet: bytes) -> _Received:
        """Decode a message; the inverse of `encode` at the other end.

        Raises:
            ValueError: This end does not know such a message.
        """
        kind, content = json.loads(packet)
        if kind not in self._receives:
            raise ValueError(
                f"a message {kind!r} is not one of {', '.join(sorted(self._receives))}: the process that has sent it "
                "is not of this version of Stoker"
            )
        return cast("_Received", _reader(self._receives[kind])(content))


def _members(union: Any) -> tuple[type, ...]:
    return get_args(union) or (union,)


def _kind(message: type) -> str:
    return message.__name__


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    """The fallback of the JSON encoder for types it does not know."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"messages cannot hold {type(value)}")
    return _fields_of(value)


@functools.cache
def _reader(declared: Any) -> _Reader:
    """The function that decodes the JSON of a value of this type."""
    origin, arguments = get_origin(declared), get_args(declared)
    if declared in _AS_THEY_ARE or origin is Literal:
        return _same
    if declared is Path:
        return Path
    if dataclasses.is_dataclass(declared):
        return _dataclass_reader(cast("type", declared))
    if origin is tuple and arguments[1:] == (...,):
        item = _reader(arguments[0])
        return lambda values: tuple(map(item, values))
    if origin in (dict, Mapping) and arguments[0] is str:
        item = _reader(arguments[1])
        return lambda values: {name: item(value) for name, value in values.items()}
    if origin in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
        item = _reader(next(argument for argument in arguments if argument is not NoneType))
        return lambda value: None if value is None else item(value)
    raise TypeError(f"messages cannot hold {declared}")


def _dataclass_reader(declared: type) -> _Reader:
    types = get_type_hints(declared)
    readers = {field.name: _reader(types[field.name]) for field in dataclasses.fields(declared)}
    return lambda values: declared(**{name: readers[name](value) for name, value in values.items()})


def _same(value: Any) -> Any:
    return value
