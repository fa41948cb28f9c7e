"""Sequences: requests that continue from the state that previous ones left."""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from msgspec import Struct

from stoker.settings.choices import ControlKind

SEQUENCE_WORDS: Final = 3
"""Words that a row has for its sequence: two that identify it, 0 for no sequence, and flags."""
SEQUENCE_START: Final = 1
"""Flag of a row that starts its sequence; an existing one is restarted."""
SEQUENCE_END: Final = 2
"""Flag of the last row of its sequence."""
MAX_ID: Final = (1 << 64) - 1
"""The largest numeric id."""
MAX_ID_CHARS: Final = 128
"""The maximum length of a text id."""

TEXT_IDS: Final = "string"
"""The dtype of ids passed to the model as text."""
ID_BYTES: Final = 2 + 4 * MAX_ID_CHARS
"""Bytes of a row for an id passed as text: its length, and UTF-8."""

_NAME: Final = struct.Struct("<qq")


class Control(Struct, frozen=True):
    """An input of a model that the server fills in.

    Attributes:
        dtype: Its numpy dtype, or `string`.
    """

    name: str
    kind: ControlKind
    dtype: str
    off: float = 0
    on: float = 1


class SequenceStep(NamedTuple):
    """One request of a sequence.

    Attributes:
        id: The caller's id of the sequence; a number and a text are never the same.
    """

    id: int | str
    start: bool = False
    end: bool = False

    def words(self, caller: str) -> tuple[int, int, int]:
        """The words of a row for this step, `int64[3]`.

        Args:
            caller: The caller's identity: each caller has a separate set of ids.
        """
        content = f"{type(self.id).__name__} {self.id}\0{caller}".encode("utf-8", "surrogatepass")
        first, second = _NAME.unpack(hashlib.blake2b(content, digest_size=_NAME.size).digest())
        # The first word must be 0 only without a sequence.
        return first | 1, second, self.start * SEQUENCE_START | self.end * SEQUENCE_END

    def text(self) -> bytes:
        """Its id packed as text for the model, `ID_BYTES` long; inverse of `sequence_id_of`."""
        content = str(self.id).encode(errors="replace")
        return (len(content).to_bytes(2, "little") + content).ljust(ID_BYTES, b"\0")


def sequence_id_of(packed: bytes) -> str:
    """Return the id packed by `SequenceStep.text`; any other bytes give some text."""
    return packed[2 : 2 + int.from_bytes(packed[:2], "little")].decode(errors="replace")


def sequence_replica(words: tuple[int, int, int], replicas: int) -> int:
    """The replica that has a sequence: the same in all frontends while the number of replicas is constant."""
    return words[1] % replicas
