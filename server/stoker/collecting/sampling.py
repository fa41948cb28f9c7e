"""The requests that are collected, by their ids."""

from __future__ import annotations

import hashlib


def is_sampled(request_id: bytes, sample_rate: float) -> bool:
    """Return whether a request is sampled: the same id gives the same result in every process and server."""
    digest = hashlib.blake2b(request_id, digest_size=8).digest()
    return int.from_bytes(digest, "big") < round(sample_rate * 2**64)
