"""Sequences: requests that go on from the state which those before them have left."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

__all__ = [
    "END",
    "ID_BYTES",
    "MAX_ID",
    "MAX_ID_CHARS",
    "START",
    "TEXT_IDS",
    "WORDS",
    "Control",
    "ControlKind",
    "SequenceStep",
    "replica_of",
    "text_of",
]

ControlKind = Literal["start", "end", "ready", "id"]
"""What a model may be told of a row: that it begins its sequence, or ends it, that it is one, and of which it is."""

WORDS: Final = 3
"""What a row says of its sequence: two words that name it, 0 for none, and flags."""
START: Final = 1
"""The flag of a row that begins its sequence, anew if there is one."""
END: Final = 2
"""The flag of a row that is the last one of its sequence."""
MAX_ID: Final = (1 << 64) - 1
"""The greatest id that is a number."""
MAX_ID_CHARS: Final = 128
"""The longest id that is a text."""

TEXT_IDS: Final = "string"
"""The dtype of ids that a model is told as texts."""
ID_BYTES: Final = 2 + 4 * MAX_ID_CHARS
"""How much of a row an id takes that a model is told as a text: its length, and UTF-8."""

_NAME: Final = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Control:
    """An input of a model that the server fills.

    Attributes:
        name: The input.
        kind: What it tells.
        dtype: Its numpy dtype, or `string`.
        off: What it holds where that is not so; nothing of an id.
        on: What it holds where it is.
    """

    name: str
    kind: ControlKind
    dtype: str
    off: float = 0
    on: float = 1


class SequenceStep(NamedTuple):
    """One request of a sequence.

    Attributes:
        id: What its caller calls the sequence; a number and a text are never the same.
        start: Whether it begins the sequence.
        end: Whether it is the last one.
    """

    id: int | str
    start: bool = False
    end: bool = False

    def words(self, caller: str) -> tuple[int, int, int]:
        """What a row says of it, `int64[3]`.

        Args:
            caller: Who asks: callers have sequences of their own, whatever they call them.
        """
        said = f"{type(self.id).__name__} {self.id}\0{caller}".encode("utf-8", "surrogatepass")
        first, second = _NAME.unpack(hashlib.blake2b(said, digest_size=_NAME.size).digest())
        # The first word is 0 only where there is no sequence.
        return first | 1, second, self.start * START | self.end * END

    def text(self) -> bytes:
        """Its id as a model is told it in a text, `ID_BYTES` long; `text_of` reads it."""
        said = str(self.id).encode(errors="replace")
        return (len(said).to_bytes(2, "little") + said).ljust(ID_BYTES, b"\0")


def text_of(packed: bytes) -> str:
    """Return the id of `SequenceStep.text`; whatever else it is given, a text."""
    return packed[2 : 2 + int.from_bytes(packed[:2], "little")].decode(errors="replace")


def replica_of(words: tuple[int, int, int], replicas: int) -> int:
    """Which of so many replicas has a sequence: the same one in all frontends, for as long as there are as many."""
    return words[1] % replicas
