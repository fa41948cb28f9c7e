"""A model that sleeps, served with a target and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.simulation.devices import Curve
from stoker_bench.contestants.servers import HOST, Launch, deployment_launch
from stoker_bench.generators.scoring_request import DATA_LISTS, ScoringRequest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CURVE", "puppet_launch", "puppet_request"]

CURVE: Final = Curve(20.0, 1.0, 64)
"""What its batches take: 20 ms, and 1 ms a row."""

SCRIPT: Final = f'''"""Sleeps as long as a batch takes, counted from when it has begun."""

import time

import stoker

BATCH_S, ROW_S = {CURVE.batch_ms / 1e3}, {CURVE.row_ms / 1e3}


def init():
    """There is nothing to load."""


@stoker.batched(shape=(2,), dtype="float32")
def run(batch):
    """Give the rows back, in time."""
    until_s = time.monotonic() + BATCH_S + ROW_S * len(batch)
    answer = batch.copy()
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(left_s)
    return answer
'''


def puppet_launch(folder: Path, target_ms: float | None) -> Launch:
    """How to start a server of the puppet, with one frontend and nothing that uses its device besides.

    Args:
        folder: A new folder for it.
        target_ms: Its target; None for none.
    """
    folder.mkdir()
    script = folder / "puppet.py"
    script.write_text(SCRIPT, encoding="utf-8")
    model: dict[str, Any] = {"path": str(script), "max_batch_rows": CURVE.max_batch_rows, "audit": "off"}
    if target_ms is not None:
        # With late answers those who wait for them would need thousands of connections.
        model |= {"target_ms": target_ms, "late": "refuse"}
    return deployment_launch({"models": [model]}, folder, folder / "workspace", ("--frontends", "1"))


def puppet_request(launch: Launch, rows: int) -> ScoringRequest:
    """A request of so many rows."""
    body = DATA_LISTS.encode(np.zeros((rows, 2), np.float32))
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {launch.key}"}
    return ScoringRequest(HOST, launch.port, launch.score_path, body, headers)
