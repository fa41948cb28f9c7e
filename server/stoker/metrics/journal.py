"""The latest failed and slow requests of each frontend: rings of short records in shared memory, after the history.

A frontend writes its own rings; any frontend reads all of them. A record that is written while it is read is
skipped.
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
"""Offset of the end of the journal in the metrics file."""


class Journal:
    """Reads the records of all frontends, and writes those of one frontend."""

    def __init__(self, fd: int, page: int) -> None:
        """Map the metrics file; `fd` may be closed afterwards.

        Args:
            fd: The file descriptor.
            page: The page of the frontend that writes.
        """
        self._memory = mmap.mmap(fd, _JOURNAL_BYTES, offset=PAST_END)
        self._own = {kind: self._ring(page, kind) for kind in _KINDS}
        # A restarted frontend continues after the records of its predecessor.
        self._written = {kind: ring.newest for kind, ring in self._own.items()}

    def write(self, kind: Kind, record: bytes) -> None:
        """Append a record of at most `RECORD_BYTES`; the oldest one is overwritten."""
        self._written[kind] += 1
        self._own[kind].write(self._written[kind], record)

    def read(self, kind: Kind) -> list[bytes]:
        """Return the records of all frontends."""
        return [record for page in range(FIRST_DEVICE_PAGE) for _, record in self._ring(page, kind).all()]

    def _ring(self, page: int, kind: Kind) -> Ring:
        return Ring(self._memory, page * _FRONTEND_BYTES + _KINDS.index(kind) * _RING_BYTES, _RECORDS)
