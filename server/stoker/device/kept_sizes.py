"""The sizes of batches that a load has chosen for a model and a GPU, kept in the workspace for the next load."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stoker.deployment import Deployment, Device
from stoker.system.durable import replace_file

logger = logging.getLogger(__name__)

KeepSizes = Callable[[Sequence[int]], None]
"""Keeps the sizes that were chosen for the next load."""


def read_sizes(deployment: Deployment, device: Device) -> tuple[int, ...] | None:
    """Return the sizes that an earlier load of the same files and settings chose on such a device."""
    file = _file(deployment, device)
    try:
        content = b"" if file is None else file.read_bytes()
        sizes = msgspec.json.decode(content, type=tuple[int, ...])
    except (OSError, msgspec.DecodeError):
        return None
    return sizes if sizes and sizes[-1] <= deployment.max_batch_rows else None


def write_sizes(deployment: Deployment, device: Device, sizes: Sequence[int]) -> None:
    """Keep the sizes for the next load, if the model has a folder for that."""
    file = _file(deployment, device)
    if file is None:
        return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, msgspec.json.encode(list(sizes)))
    except OSError as error:
        logger.info("%s: its batch_buckets are not kept: %s", deployment.name, error)


def _file(deployment: Deployment, device: Device) -> Path | None:
    if deployment.engine_cache is None:
        return None
    settings = (device.description, deployment.acceleration, deployment.max_batch_rows, deployment.target_ms)
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
    return deployment.engine_cache / f"batch-buckets-{digest}.json"
