"""What a server and its successor tell each other: the listening sockets, and who is to serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.control.message_codec import Codec

__all__ = [
    "PREDECESSOR_END",
    "SUCCESSOR_END",
    "FromSuccessor",
    "Leave",
    "NotReloaded",
    "NotStarted",
    "Reload",
    "Sockets",
    "ToSuccessor",
]


@dataclass(frozen=True, slots=True)
class Sockets:
    """Some of the listening sockets, whose descriptors come beside the message; a packet has room for few.

    The successor gets those of its predecessor, and gives its own back once it serves.

    Attributes:
        last: Whether these are the last ones.
    """

    last: bool


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The successor ends without having served.

    Attributes:
        error: Why, for the operator.
    """

    error: str


@dataclass(frozen=True, slots=True)
class Reload:
    """The successor wants one for itself; answered by `Leave` or `NotReloaded`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The successor has one itself that serves: it answers its last requests and ends."""


@dataclass(frozen=True, slots=True)
class NotReloaded:
    """The successor goes on, because its own did not start.

    Attributes:
        error: Why.
    """

    error: str


ToSuccessor = Sockets | Leave | NotReloaded
"""What a server tells its successor."""

FromSuccessor = Sockets | NotStarted | Reload
"""What a successor tells its predecessor."""

PREDECESSOR_END: Final[Codec[ToSuccessor, FromSuccessor]] = Codec(ToSuccessor, FromSuccessor)
SUCCESSOR_END: Final[Codec[FromSuccessor, ToSuccessor]] = Codec(FromSuccessor, ToSuccessor)
