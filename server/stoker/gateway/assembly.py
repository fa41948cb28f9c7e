"""Making a frontend's service of what the supervisor says about a version of a model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.collection import read_collection
from stoker.errors import LoadFailed
from stoker.gateway.admission import LimitedService
from stoker.gateway.image_scoring import ImageScoring
from stoker.gateway.service import Service
from stoker.image_input import read_image_input
from stoker.keyring import Keys, KeyVerifier
from stoker.metrics import MetricPage, ModelMetrics
from stoker.swagger_files import read_swagger_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.gateway.collector import Collector

__all__ = ["assemble"]

logger = logging.getLogger(__name__)


def assemble(content: Mapping[str, Any], page: MetricPage, server: Mapping[str, Any]) -> Service:
    """Make a service.

    Args:
        content: What a `serve` message says of it.
        page: The frontend's page of the metrics.
        server: What the `start` message says of the server.
    """
    keys_dir, name = Path(server["keys_dir"]), content["name"]
    keys = tokens = None
    if server["auth"] or server["token_auth"]:
        given = content.get("keys")
        keys = KeyVerifier(keys_dir, name, Keys(**given) if given else None)
    if server["token_auth"]:
        from stoker.tokens import TokenVerifier

        assert keys is not None, "made above: tokens are handed out for keys"
        tokens = TokenVerifier(keys_dir, name, keys)
    metrics = page.model(content["slot"])
    metrics.clear_gauges()
    core: dict[str, Any] = {
        "verifier": keys if server["auth"] else None,
        "tokens": tokens,
        "metrics": metrics,
        "timeout_ms": content["timeout_ms"],
        "max_body_bytes": server["max_body_bytes"],
        "description": content["description"],
        "images": _images(content, server),
        "collector": _collector(content, server, metrics),
        "version": str(content["version"]),
        "framework": content["framework"],
    }
    limit = content["max_concurrent_requests"]
    if limit is None:
        service = Service(name, **core)
    else:
        service = LimitedService(name, limit=limit, max_wait_ms=content["max_queue_wait_ms"], **core)
    service.own_swagger = _own_swagger(content["swagger_files"])
    return service


def _own_swagger(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What the user's files say; what has become unreadable since the start is left to be made."""
    descriptions = {}
    for version, file in files.items():
        try:
            descriptions[version] = read_swagger_file(Path(file))
        except LoadFailed as error:
            logger.warning("%s", error)
    return descriptions


def _images(content: Mapping[str, Any], server: Mapping[str, Any]) -> ImageScoring | None:
    if content["image"] is None:
        return None
    return ImageScoring(
        read_image_input(content["image"]),
        max_pixels=server["max_image_pixels"],
        max_rows_bytes=server["max_body_bytes"],
    )


def _collector(
    content: Mapping[str, Any], server: Mapping[str, Any], metrics: ModelMetrics
) -> Collector | None:
    settings = read_collection(content["collection"] or False)
    if not settings:
        return None
    from stoker.gateway.collector import Collector
    from stoker.record_files import RecordFiles

    version = content["version"]
    files = RecordFiles(
        Path(content["data_dir"]),
        version,
        settings.format,
        max_bytes=settings.max_mb << 20,
        writers=server["frontends"],
    )
    collector = Collector(content["name"], version, settings, files, metrics)
    collector.start()
    return collector
