"""Encodes messages between processes; both ends use the same dataclass definitions.

A message is a pair of its class's name and its fields by name. msgspec writes and checks the fields, so a message may
have any field that it knows, and `Path`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast, get_args

import msgspec

__all__ = ["Codec"]

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")

_FORMATS: Final[dict[str, Any]] = {"msgpack": msgspec.msgpack, "json": msgspec.json}


class Codec(Generic[_Sent, _Received]):
    """Encodes the messages that one end of a channel sends, and decodes those that it receives."""

    def __init__(self, sends: Any, receives: Any, form: Literal["msgpack", "json"] = "msgpack") -> None:
        """Create a codec; messages are frozen dataclasses.

        Args:
            sends: The class of messages that this end sends, or the union of the classes.
            receives: Likewise for messages that it receives.
            form: MessagePack between processes of one version, which have infinities; JSON between versions.
        """
        self._sends: frozenset[type] = frozenset(_members(sends))
        format_ = _FORMATS[form]
        self._encoder = format_.Encoder(enc_hook=_encode_path)
        self._envelope = format_.Decoder(tuple[str, msgspec.Raw])
        self._decoders = {
            message.__name__: format_.Decoder(message, dec_hook=_decode_path)
            for message in _members(receives)
        }

    def encode(self, message: _Sent) -> bytes:
        """Encode a message.

        Raises:
            TypeError: This end does not send such messages, or a value cannot be encoded.
        """
        if type(message) not in self._sends:
            raise TypeError(f"{type(message).__name__} is not a message that this process sends")
        return cast("bytes", self._encoder.encode((type(message).__name__, message)))

    def decode(self, packet: bytes) -> _Received:
        """Decode a message; the inverse of `encode` at the other end.

        Raises:
            ValueError: This end does not know such a message, or a field has another type.
        """
        kind, content = self._envelope.decode(packet)
        decoder = self._decoders.get(kind)
        if decoder is None:
            raise ValueError(
                f"a message {kind!r} is not one of {', '.join(sorted(self._decoders))}: the process that has sent it "
                "is not of this version of Stoker"
            )
        return cast("_Received", decoder.decode(content))


def _members(union: Any) -> tuple[type, ...]:
    return get_args(union) or (union,)


def _encode_path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"messages cannot hold {type(value)}")


def _decode_path(declared: type, value: Any) -> Path:
    if declared is Path:
        return Path(value)
    raise TypeError(f"messages cannot hold {declared}")
