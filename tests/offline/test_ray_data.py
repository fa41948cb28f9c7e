"""Ray Data: `map_batches(Predictor, …)`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.live_server import PRIMARY, LiveServer

from stoker.offline import Predictor
from stoker_client import Client

ray = pytest.importorskip("ray", reason="Ray is not installed: the extra ray")

pytestmark = [
    # Ray leaves sockets and processes to their finalizers.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[None]:
    """Ray on this machine, for two tasks at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # No token is looked for, or made, for whoever runs the tests; of one that is set only now Ray, which has been
        # imported, would know nothing.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=400_000_000,
            _node_ip_address="127.0.0.1",
        )
        yield
        ray.shutdown()


@pytest.mark.usefixtures("engine")
def test_a_million_rows_are_answered_as_by_a_server(
    model: Path, rows: np.ndarray, answers: np.ndarray
) -> None:
    """Bit for bit, by an actor that has loaded the model once."""
    table = ray.data.from_numpy(rows)
    scored = table.map_batches(
        Predictor,
        fn_constructor_args=(str(model), "cpu"),
        batch_size=4096,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    parts = [ray.get(block)["y"] for block in scored.to_numpy_refs()]
    assert np.concatenate(parts).tobytes() == answers.tobytes()


@pytest.mark.usefixtures("engine")
def test_columns_go_through(model: Path, rows: np.ndarray, answers: np.ndarray) -> None:
    """A column that is no input stays beside the answers of its rows."""
    table = ray.data.from_items([{"id": number, "x": row} for number, row in enumerate(rows[:1000])])
    scored = table.map_batches(
        Predictor,
        fn_constructor_args=(str(model), "cpu"),
        fn_constructor_kwargs={"keep": ("id",)},
        batch_size=100,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    taken = sorted(scored.take_all(), key=lambda row: row["id"])
    assert [row["id"] for row in taken] == list(range(1000))
    assert np.stack([row["y"] for row in taken]).tobytes() == answers[:1000].tobytes()


class Scorer:
    """A worker that asks a server."""

    def __init__(self, uri: str, key: str) -> None:
        self._client = Client(uri, key)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**batch, "y": self._client.score_many(batch["x"])}


@pytest.mark.usefixtures("engine")
def test_workers_ask_a_server(tmp_path: Path, model: Path, rows: np.ndarray, answers: np.ndarray) -> None:
    """Its answers stand beside the other columns."""
    table = ray.data.from_items([{"id": number, "x": row} for number, row in enumerate(rows[:1000])])
    with LiveServer(tmp_path, model, "--frontends", "1", "--device", "cpu") as server:
        uri = f"http://127.0.0.1:{server.port}/score"
        scored = table.map_batches(Scorer, fn_constructor_args=(uri, PRIMARY), concurrency=1, batch_size=100)
        taken = sorted(scored.take_all(), key=lambda row: row["id"])
    assert [row["id"] for row in taken] == list(range(1000))
    values = np.stack([row["y"] for row in taken]).astype(np.float32)
    assert values.tobytes() == answers[:1000].tobytes()
