"""What a server and its successor tell each other: the listening sockets, and who is to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stoker.control.message_codec import Codec

__all__ = [
    "PREDECESSOR_END",
    "SUCCESSOR_END",
    "FromSuccessor",
    "Labels",
    "Leave",
    "NotReloaded",
    "NotStarted",
    "Reload",
    "Sockets",
    "ToSuccessor",
]


@dataclass(frozen=True, slots=True)
class Labels:
    """What the labels of models mean; a successor gets it before the sockets.

    A label that has been moved to a version which has not come yet goes on meaning the old one, and nothing on the
    disk says which that is.

    Attributes:
        by_model: The versions by label, by the name of the model.
    """

    by_model: Mapping[str, Mapping[str, int]]


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
    """The successor wants one for itself; answered by `Leave` or `NotReloaded`.

    Attributes:
        labels: What labels mean in it.
    """

    labels: Labels


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


ToSuccessor = Labels | Sockets | Leave | NotReloaded
"""What a server tells its successor."""

FromSuccessor = Sockets | NotStarted | Reload
"""What a successor tells its predecessor."""

PREDECESSOR_END: Final[Codec[ToSuccessor, FromSuccessor]] = Codec(ToSuccessor, FromSuccessor)
SUCCESSOR_END: Final[Codec[FromSuccessor, ToSuccessor]] = Codec(FromSuccessor, ToSuccessor)
