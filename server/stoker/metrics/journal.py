"""The latest remarkable requests of each frontend: rings of short records in shared memory, behind the past.

A frontend writes its own; any frontend reads all of them. A record that is being written while it is read is left
out.
"""

from __future__ import annotations

import mmap
from typing import Final, Literal

from stoker.metrics.layout import FIRST_DEVICE_PAGE
from stoker.metrics.past import PAST_END
from stoker.metrics.rings import Ring, ring_bytes

__all__ = ["JOURNAL_END", "Journal", "Kind"]

Kind = Literal["failed", "slow"]

_KINDS: Final[tuple[Kind, ...]] = ("failed", "slow")
_RECORDS: Final = 128
_RING_BYTES: Final = ring_bytes(_RECORDS)
_FRONTEND_BYTES: Final = len(_KINDS) * _RING_BYTES
_JOURNAL_BYTES: Final = FIRST_DEVICE_PAGE * _FRONTEND_BYTES
JOURNAL_END: Final = PAST_END + _JOURNAL_BYTES
"""Where it ends in the file of the metrics."""


class Journal:
    """The records of all frontends, and the writing of one's own."""

    def __init__(self, fd: int, page: int) -> None:
        """Map the file of the metrics; `fd` may be closed afterwards.

        Args:
            fd: The file.
            page: The page of the frontend that writes.
        """
        self._memory = mmap.mmap(fd, _JOURNAL_BYTES, offset=PAST_END)
        self._own = {kind: self._ring(page, kind) for kind in _KINDS}
        # A successor writes on behind what the one before it has written.
        self._written = {kind: ring.newest for kind, ring in self._own.items()}

    def write(self, kind: Kind, record: bytes) -> None:
        """Add a record of at most `RECORD_BYTES`; the oldest one goes."""
        self._written[kind] += 1
        self._own[kind].write(self._written[kind], record)

    def read(self, kind: Kind) -> list[bytes]:
        """All records of all frontends."""
        return [record for page in range(FIRST_DEVICE_PAGE) for _, record in self._ring(page, kind).all()]

    def _ring(self, page: int, kind: Kind) -> Ring:
        return Ring(self._memory, page * _FRONTEND_BYTES + _KINDS.index(kind) * _RING_BYTES, _RECORDS)
