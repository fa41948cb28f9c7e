"""Answers that a frontend keeps of one version of a model: the same rows have the same answer."""

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
"""What an entry takes beside its outputs: its key, its place in the order, an object and a list for each output."""


class KeptAnswer(NamedTuple):
    """An answer as the model gave it, before any protocol has written it.

    Attributes:
        rows: How many rows the request had.
        outputs: The outputs; nobody writes into them.
        size_bytes: What it takes.
    """

    rows: int
    outputs: SlicedAnswer
    size_bytes: int

    @classmethod
    def of(cls, rows: int, outputs: SlicedAnswer) -> KeptAnswer:
        """Keep the outputs of a request."""
        size_bytes = _ENTRY_BYTES
        for array in outputs.arrays:
            array.flags.writeable = False
            size_bytes += array.nbytes
        for texts in outputs.texts:
            size_bytes += sum(map(len, texts))
        return cls(rows, outputs, size_bytes)


class AnswerCache:
    """Answers by what was asked, those that were asked for longest ago forgotten first.

    What was asked is told apart by 128 bits of BLAKE2b with a key that this process alone knows: nobody can look for
    two requests with one digest, and by chance there are none.

    Args:
        max_bytes: The most that the answers take.
        note_size: Told what they take, whenever that changes, and how many were forgotten for it.
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
        """Return what stands for rows of all inputs, each `[n, *row_shape]` of its input's dtype, contiguous.

        Shapes and dtypes of rows are the model's, so their contents and *n* say all.
        """
        digest = self._empty_hash.copy()
        digest.update(len(rows[0]).to_bytes(8, "little"))
        for array in rows:
            digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        return digest.digest()

    def key_of_body(self, body: bytes | memoryview) -> bytes:
        """Return what stands for a body."""
        digest = self._empty_hash.copy()
        digest.update(body)
        return digest.digest()

    def find(self, key: bytes) -> KeptAnswer | None:
        """Return the answer to what was asked before, if it is kept."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: bytes, answer: KeptAnswer) -> None:
        """Keep an answer, and forget others for it; one that is larger than all may be is not kept."""
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
        """Forget all: what has given them has gone, and what comes instead of it may answer otherwise."""
        self._answers.clear()
        self.size_bytes = 0
        self._note_size(0, 0)
