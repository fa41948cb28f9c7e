"""A frontend's cache of the answers of one version of a model: the same rows have the same answer."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.gateway.rows.ticket import SlicedAnswer

__all__ = ["AnswerCache", "KeptAnswer"]

_DIGEST_BYTES: Final = 16
_ENTRY_BYTES: Final = 768
"""Memory of an entry beside its outputs: its key, its place in the order, an object and a list for each output."""


class KeptAnswer(NamedTuple):
    """A cached answer as the model gave it, independent of protocols.

    Attributes:
        rows: How many rows the request had.
        outputs: The outputs; they must not be written to.
        size_bytes: How much memory the entry takes.
    """

    rows: int
    outputs: SlicedAnswer
    size_bytes: int

    @classmethod
    def of(cls, rows: int, outputs: SlicedAnswer) -> KeptAnswer:
        """Copy the outputs of a request."""
        size_bytes = _ENTRY_BYTES
        for array in outputs.arrays:
            array.flags.writeable = False
            size_bytes += array.nbytes
        for texts in outputs.texts:
            size_bytes += sum(map(len, texts))
        return cls(rows, outputs, size_bytes)


class AnswerCache:
    """Answers by request; the least recently used ones are dropped first.

    Requests are identified by 128 bits of BLAKE2b with a key that only this process knows, so nobody can construct
    two requests with one digest, and chance does not produce them.

    Args:
        max_bytes: The most memory that all answers take.
        note_size: Called with the memory in use whenever it changes, and with how many answers were dropped for it.
    """

    def __init__(self, max_bytes: int, note_size: Callable[[int, int], None]) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._note_size = note_size
        self._answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._empty_hash = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=secrets.token_bytes(32))

    def __len__(self) -> int:
        return len(self._answers)

    def key_of_rows(self, rows: Sequence[np.ndarray]) -> bytes:
        """Return the key of rows: one array per input, `[n, *row_shape]` of the input's dtype, contiguous.

        Row shapes and dtypes are the model's, so the contents and *n* identify the rows.
        """
        digest = self._empty_hash.copy()
        digest.update(len(rows[0]).to_bytes(8, "little"))
        for array in rows:
            digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        return digest.digest()

    def key_of_body(self, body: bytes | memoryview) -> bytes:
        """Return the key of a body."""
        digest = self._empty_hash.copy()
        digest.update(body)
        return digest.digest()

    def find(self, key: bytes) -> KeptAnswer | None:
        """Return the cached answer to this request, if there is one."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: bytes, answer: KeptAnswer) -> None:
        """Add an answer, dropping others to make room; an answer larger than the whole cache is not added."""
        if answer.size_bytes > self.max_bytes:
            return
        known = self._answers.pop(key, None)
        if known is not None:
            self.size_bytes -= known.size_bytes
        self._answers[key] = answer
        self.size_bytes += answer.size_bytes
        evicted = 0
        while self.size_bytes > self.max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
            evicted += 1
        self._note_size(self.size_bytes, evicted)

    def clear(self) -> None:
        """Drop all answers: the replica that gave them has gone, and its successor may answer differently."""
        self._answers.clear()
        self.size_bytes = 0
        self._note_size(0, 0)
