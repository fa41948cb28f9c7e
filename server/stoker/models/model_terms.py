"""The terms of a version: its own settings, then what was registered with it, then the server's settings."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stoker.collecting.collection import CollectionSettings
from stoker.errors import InvalidSettings
from stoker.models.servables import entry_script_of
from stoker.models.swagger_files import find_swagger_files
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.settings.traffic import Bounds, Parity
from stoker.system.extras import how_to_install
from stoker.terms import MAX_QUEUE_WAIT_MS, Terms

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.models.sources import ModelSource
    from stoker.settings.model import ModelSettings
    from stoker.settings.server import ServerSettings
    from stoker.settings.workspace import Workspace

__all__ = ["terms_of"]

logger = logging.getLogger(__name__)


def terms_of(
    source: ModelSource,
    model_dir: Path,
    model: ModelSettings,
    settings: ServerSettings,
    workspace: Workspace,
) -> Terms:
    """Return the terms of a version.

    Args:
        source: The version.
        model_dir: The folder with its files.
        model: The model's settings.
        settings: The server's settings.
        workspace: Where collected data goes.

    Raises:
        InvalidSettings: A package is missing that a setting needs.
        LoadFailed: A description that the user has written cannot be read.
    """
    script = entry_script_of(source)
    collection = _collection(model, settings)
    collects_rows = collection is not None and script is not None
    return Terms(
        timeout_ms=model.timeout_ms or settings.timeout_ms,
        target_ms=model.target_ms,
        late=model.late,
        admission=model.admission or ("rows" if model.target_ms is None else "target"),
        hold=model.hold,
        device_share=model.device_share,
        default_tier=model.default_tier,
        tier_block_ms=model.tier_block_ms,
        tier_floor=model.tier_floor,
        load_timeout_s=model.load_timeout_s or settings.load_timeout_s,
        max_concurrent_requests=model.max_concurrent_requests,
        max_queue_wait_ms=MAX_QUEUE_WAIT_MS if model.max_queue_wait_ms is None else model.max_queue_wait_ms,
        cache_bytes=0 if model.cache_mb is None else int(model.cache_mb * 2**20),
        description=model.description,
        swagger_files=find_swagger_files(
            script, model_dir, {**os.environ, **(model.environment_variables or {})}
        ),
        image=_image(model, source),
        collection=collection,
        data_dir=None if collection is None else workspace.create().data_dir / source.name,
        model_data_dir=(workspace.model_data_dir / source.name).absolute() if collects_rows else None,
        non_finite=model.non_finite or settings.non_finite,
        rollback=Bounds() if model.rollback is None else model.rollback or None,
        parity=_parity(model, settings),
    )


def _parity(model: ModelSettings, settings: ServerSettings) -> Parity:
    tolerance, rows = model.parity_tolerance, model.parity_rows
    if model.sequence is not None:
        # A request alone, without those before it, has no answer that another version could be held against.
        return Parity()
    return Parity(
        model.parity or settings.parity,
        settings.parity_tolerance if tolerance is None else tolerance,
        settings.parity_rows if rows is None else rows,
    )


def _collection(model: ModelSettings, settings: ServerSettings) -> CollectionSettings | None:
    """What is collected of a model: as its own settings say, else as the server's do."""
    collection = model.collect
    if collection is None and settings.collect:
        collection = CollectionSettings()
    if collection and collection.format == "parquet" and find_spec("pyarrow") is None:
        raise InvalidSettings(
            f"collect: the format parquet is written by pyarrow, which is not installed; {how_to_install('parquet')}"
        )
    return collection or None


def _image(model: ModelSettings, source: ModelSource) -> ImageInput | None:
    """How a model's input is made from images: as its settings say, else as it was registered."""
    registered = None if source.registered is None else source.registered.image
    if find_spec("PIL") is None:
        missing = f"images are decoded by Pillow, which is not installed; {how_to_install('images')}"
        if model.image is not None:
            raise InvalidSettings(f"{source.name}: {missing}")
        if registered is not None:
            logger.warning("%s takes no images, only numbers: %s", source.name, missing)
        return None
    if model.image is None and registered is not None:
        return read_image_input(registered)
    return model.image
