"""The settings of `collect`: what is collected of a model's requests and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from stoker.settings.readers import choice_of, number_of, read_members

RecordFormat = Literal["jsonl", "parquet"]
Collects = Literal["inputs", "outputs"]


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """How requests and answers of a model are collected.

    Attributes:
        sample_rate: Share of the requests that is collected, above 0 and at most 1.
        format: JSON lines, or Parquet.
        max_mb: Limit of the size of one model's files, in MiB; beyond it the oldest are removed.
        collections: Whether the bodies of requests (`inputs`), those of answers (`outputs`) or both are kept.
    """

    sample_rate: float = 1.0
    format: RecordFormat = "jsonl"
    max_mb: int = 1024
    collections: tuple[Collects, ...] = ("inputs", "outputs")


def is_sampled(request_id: bytes, sample_rate: float) -> bool:
    """Return whether a request is sampled: the same id gives the same result in every process and server."""
    digest = hashlib.blake2b(request_id, digest_size=8).digest()
    return int.from_bytes(digest, "big") < round(sample_rate * 2**64)


def _read_collections(value: Any) -> tuple[Collects, ...]:
    words = get_args(Collects)
    if not isinstance(value, list | tuple) or not value or not set(value) <= set(words):
        raise ValueError(f"must be a list of {', '.join(words)}")
    return tuple(value)


_READERS: Final = {
    "sample_rate": number_of(float, 1e-9, 1),
    "format": choice_of(*get_args(RecordFormat)),
    "max_mb": number_of(int, 16, 1 << 24),
    "collections": _read_collections,
}


def read_collection(value: Any) -> CollectionSettings | Literal[False]:
    """Validate the setting `collect`: true, false, or a mapping of the attributes of `CollectionSettings`.

    Raises:
        ValueError: It has unknown keys or bad values. The message is the end of a sentence about the setting.
    """
    word = str(value).lower()
    if word in ("true", "false"):
        return CollectionSettings() if word == "true" else False
    if not isinstance(value, Mapping):
        raise ValueError(f"must be true or false, or hold {', '.join(_READERS)} by name")
    return CollectionSettings(**read_members(value, _READERS))
