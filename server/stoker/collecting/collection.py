"""The settings of `collect`: what is collected of a model's requests and answers."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

RecordFormat = Literal["jsonl", "parquet"]
Collects = Literal["inputs", "outputs"]

_MIN_MB: Final = 16
_MAX_MB: Final = 1 << 24


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

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that `read_collection` accepts."""
        return {**dataclasses.asdict(self), "collections": list(self.collections)}


def is_sampled(request_id: bytes, sample_rate: float) -> bool:
    """Return whether a request is sampled: the same id gives the same result in every process and server."""
    digest = hashlib.blake2b(request_id, digest_size=8).digest()
    return int.from_bytes(digest, "big") < round(sample_rate * 2**64)


def read_collection(value: Any) -> CollectionSettings | Literal[False]:
    """Validate the setting `collect`: true, false, or a mapping of the attributes of `CollectionSettings`.

    Raises:
        ValueError: It has unknown keys or bad values. The message is the end of a sentence about the setting.
    """
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if isinstance(value, bool):
        return CollectionSettings() if value else False
    names = [field.name for field in dataclasses.fields(CollectionSettings)]
    if not isinstance(value, Mapping):
        raise ValueError(f"must be true or false, or hold {', '.join(names)} by name")
    for name in value:
        if name not in names:
            # Part of a name is a likelier match than a name with similar letters.
            near = [known for known in names if str(name) in known.split("_")]
            near = near or difflib.get_close_matches(str(name), names, n=1)
            raise ValueError(
                f"has no {name!r}; " + (f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}")
            )
    made = CollectionSettings(**value)
    if not _is_number(made.sample_rate) or not 0 < made.sample_rate <= 1:
        raise ValueError("has a sample_rate that is not above 0 and at most 1")
    if made.format not in get_args(RecordFormat):
        raise ValueError(f"has a format that is none of {', '.join(get_args(RecordFormat))}")
    if not isinstance(made.max_mb, int) or not _MIN_MB <= made.max_mb <= _MAX_MB:
        raise ValueError(f"has a max_mb that is not a whole number between {_MIN_MB} and {_MAX_MB}")
    kept = made.collections
    if not isinstance(kept, list | tuple) or not kept or not set(kept) <= set(get_args(Collects)):
        raise ValueError(f"has collections that are not a list of {', '.join(get_args(Collects))}")
    return dataclasses.replace(made, sample_rate=float(made.sample_rate), collections=tuple(kept))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
