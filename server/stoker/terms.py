"""The terms of a version: what its requests are allowed, what is told of it, and what is kept of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.collecting.collection import CollectionSettings
from stoker.non_finite import WORDS, NonFinite
from stoker.settings.image_input import ImageInput
from stoker.settings.lateness import Admission, Late, Tier
from stoker.settings.takeover import Bounds, Parity

__all__ = ["MAX_QUEUE_WAIT_MS", "Terms"]

MAX_QUEUE_WAIT_MS: Final = 500
"""How long requests above `max_concurrent_requests` wait where nothing else is said: as long as on Azure."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a version of a model is allowed and told: one object for the supervisor, frontends and device processes.

    Attributes:
        timeout_ms: A request not answered by then gets 504; an entry script's `run` is interrupted after that.
        target_ms: How long after its request an answer is worth something; None if nothing is said of that.
        late: What becomes of rows that miss it: `answer` or `refuse`.
        admission: Which requests are taken: `target`, those that can be in time, or `rows`, all while a row is free.
        hold: For which part of the time that it could still wait a batch waits for company, 0 to 1.
        device_share: Weight of its time on a device that it shares.
        default_tier: How urgent requests are that do not say so: `high`, `normal` or `low`.
        tier_block_ms: The longest batch with rows of a lower tier while higher ones come; None: half of their target.
        tier_floor: Which part of the device's time lower tiers get that wait.
        load_timeout_s: How long a device process may take to load it.
        max_concurrent_requests: Most requests in flight; None is without limit.
        max_queue_wait_ms: How long further requests wait.
        cache_bytes: The most that its frontends keep of its answers; 0 to keep none.
        description: The operator's words for its description.
        swagger_files: The user's own descriptions by Swagger version.
        image: How its input is made from images; None if it takes none.
        collection: What is collected of its requests and answers; None for nothing.
        data_dir: Folder of the records of that; None if nothing is collected.
        model_data_dir: Folder of the rows that an entry script collects itself; None if it may not.
        non_finite: What becomes of NaN and infinities in the JSON of its answers.
        rollback: When it loses its weight among the versions of its model; None for never.
        parity: How it is held against the version that it takes over from, and its successor against it.
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
        """Return the terms that one frontend keeps.

        The shares of `max_concurrent_requests` add up to it, unless there are more frontends than requests: each
        takes at least one. Those of `cache_bytes` add up to no more than that.

        Args:
            frontend: Which of the frontends, from 0.
            frontends: How many there are.
        """
        limit, cache_bytes = self.max_concurrent_requests, self.cache_bytes // frontends
        if limit is not None:
            limit = max(1, limit // frontends + (frontend < limit % frontends))
        return dataclasses.replace(self, max_concurrent_requests=limit, cache_bytes=cache_bytes)
