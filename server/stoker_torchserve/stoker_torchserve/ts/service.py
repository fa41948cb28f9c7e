"""`ts.service`, of which handlers import what a prediction may raise, and log their metrics by."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stoker_torchserve.ts.utils.util import PredictionException

__all__ = ["PredictionException", "emit_metrics"]

logger = logging.getLogger(__name__)


def emit_metrics(metrics: Iterable[object]) -> None:
    """Log metrics, a line each."""
    for metric in metrics:
        logger.info("[METRICS]%s", metric)
