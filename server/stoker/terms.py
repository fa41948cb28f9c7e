"""The terms of a version: limits of its requests, facts about it, and what is recorded of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.collecting.collection import CollectionSettings
from stoker.settings.choices import WORDS, Admission, Late, NonFinite, Tier
from stoker.settings.image_input import ImageInput
from stoker.settings.traffic import Bounds, Parity

__all__ = ["MAX_QUEUE_WAIT_MS", "Terms"]

MAX_QUEUE_WAIT_MS: Final = 500
"""How long requests above `max_concurrent_requests` wait by default: as long as on Azure."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits and facts of a version of a model: one object for the supervisor, frontends and device processes.

    Attributes:
        timeout_ms: Requests not answered within this time get 504; an entry script's `run` is interrupted then.
        target_ms: Latency target; None without one.
        late: What happens to rows that miss the target: `answer` or `refuse`.
        admission: Which requests are admitted: `target`, those that can be in time, or `rows`, all while a row is
            free.
        hold: The share of its slack that a batch waits for further rows, 0 to 1.
        device_share: Its weight for device time on a shared device.
        default_tier: The tier of requests that name none: `high`, `normal` or `low`.
        tier_block_ms: The longest batch with rows of a lower tier while higher ones arrive; None for half of their
            target.
        tier_floor: The share of the device's time guaranteed to queued lower tiers.
        load_timeout_s: How long a device process may take to load it.
        max_concurrent_requests: Limit of requests in flight; None for no limit.
        max_queue_wait_ms: How long requests above that limit wait.
        cache_bytes: Limit of its response cache, over all frontends; 0 for no cache.
        description: The operator's description.
        swagger_files: The user's own API descriptions by Swagger version.
        image: How its input is made from images; None if it takes none.
        collection: What is collected of its requests and answers; None for nothing.
        data_dir: Folder of the collected records; None if nothing is collected.
        model_data_dir: Folder of the rows that an entry script collects itself; None if it may not.
        non_finite: How NaN and infinities are written in JSON answers.
        rollback: When it loses its weight among the versions of its model; None for never.
        parity: How it is compared with the version that it replaces, and its successor with it.
    """

    timeout_ms: int = 60_000
    target_ms: float | None = None
    late: Late = "answer"
    admission: Admission = "rows"
    hold: float = 0.0
    device_share: float = 1.0
    default_tier: Tier = "normal"
    tier_block_ms: float | None = None
    tier_floor: float = 0.05
    load_timeout_s: float = math.inf
    max_concurrent_requests: int | None = None
    max_queue_wait_ms: int = MAX_QUEUE_WAIT_MS
    cache_bytes: int = 0
    description: str | None = None
    swagger_files: Mapping[str, Path] = field(default_factory=dict)
    image: ImageInput | None = None
    collection: CollectionSettings | None = None
    data_dir: Path | None = None
    model_data_dir: Path | None = None
    non_finite: NonFinite = WORDS
    rollback: Bounds | None = field(default_factory=Bounds)
    parity: Parity = field(default_factory=Parity)

    def share_of(self, frontend: int, frontends: int) -> Terms:
        """Return the share of the terms for one frontend.

        The shares of `max_concurrent_requests` add up to it, unless there are more frontends than requests: each
            admits at
        least one. Those of `cache_bytes` add up to at most that.

        Args:
            frontend: Index of the frontend, from 0.
            frontends: Number of frontends.
        """
        limit, cache_bytes = self.max_concurrent_requests, self.cache_bytes // frontends
        if limit is not None:
            limit = max(1, limit // frontends + (frontend < limit % frontends))
        return dataclasses.replace(self, max_concurrent_requests=limit, cache_bytes=cache_bytes)
