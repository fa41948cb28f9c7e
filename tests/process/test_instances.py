"""A served model with several instances and buckets, under load."""

from __future__ import annotations

from pathlib import Path

from tests.live_server import wait_until
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve


def test_two_instances_answer_rightly_under_load(serve: Serve, doubler: Path, tmp_path: Path) -> None:
    """Callers of two frontends get their own answers, and batches are filled up to buckets."""
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(
        f"models:\n  - path: {doubler}\n    instances: 2\n    max_batch_rows: 12\n    batch_buckets: [4, 12]\n"
        "frontends: 2\n"
    )
    server = serve("--config", deployment)
    assert server.metric("stoker_batch_cap_rows", model="doubler") == 12
    with Callers(server.port, scored(server.key), kept_alive=32) as callers:
        wait_until(lambda: callers.answered(3000), "the load runs")
        outcomes = callers.stop()
    assert set(callers.tally()) == {200}
    assert all(outcome.right for outcome in outcomes)

    def rows_in_buckets() -> float:
        rows = server.metric("stoker_batch_rows_sum", model="doubler")
        padded = rows + server.metric("stoker_batch_padding_rows_total", model="doubler")
        return padded if rows >= len(outcomes) and padded % 4 == 0 else 0

    # Batches are counted when their answers have left.
    padded = wait_until(rows_in_buckets, "all batches are counted, with their padding")
    batches = server.metric("stoker_batch_rows_count", model="doubler")
    assert 4 * batches <= padded <= 12 * batches
