"""`stoker_client.spark.scored` on a cluster of Spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.live_server import PRIMARY, LiveServer
from tests.spark.cluster import SparkCluster, why_not
from tests.zoo import ZOO

from stoker_client import Client
from stoker_client.spark import scored

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    # It says at each call that it does not fully support pandas 3 yet.
    pytest.mark.filterwarnings("ignore"),
]

ROWS = 100_000


@pytest.fixture(scope="module")
def session(cluster: SparkCluster) -> Iterator[Any]:
    """An application on the cluster, whose events are logged."""
    from pyspark.sql import SparkSession

    events = cluster.folder / "events"
    events.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        started = (
            SparkSession.builder.master(cluster.master)
            .appName("scored")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", f"file://{events}")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        yield started
        started.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A softmax over rows of 4 numbers: y."""
    path = tmp_path_factory.mktemp("model") / "softmax.onnx"
    path.write_bytes(ZOO["softmax"][1]())
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[LiveServer]:
    with LiveServer(
        tmp_path_factory.mktemp("server"), model, "--frontends", "1", "--device", "cpu"
    ) as started:
        yield started


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """float32[100000, 4]."""
    return np.random.default_rng(30).standard_normal((ROWS, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def frame(session: Any, tmp_path_factory: pytest.TempPathFactory, rows: np.ndarray) -> Any:
    """The rows in order of their ids, as an array and as columns."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    columns = {name: pa.array(rows[:, index]) for index, name in enumerate("abcd")}
    table = pa.table({"id": pa.array(np.arange(ROWS)), "x": lists, **columns})
    pq.write_table(table, path, row_group_size=ROWS // 4)
    return session.read.parquet(str(path)).repartitionByRange(4, "id").sortWithinPartitions("id")


@pytest.fixture(scope="module")
def answers(server: LiveServer, rows: np.ndarray) -> np.ndarray:
    with Client(f"http://127.0.0.1:{server.port}/score", PRIMARY) as client:
        return client.score_many(rows, batch_rows=1024)


def ids_and_values(frame: Any, *names: str) -> list[np.ndarray]:
    """The ids in the order in which they come, and the values of a column."""
    table = frame.select("id", *names).toArrow()
    found = [table["id"].to_numpy()]
    return [*found, *(np.stack(table[name].to_numpy(zero_copy_only=False)) for name in names)]


def test_a_server_scores_rows_in_their_order(
    frame: Any,
    server: LiveServer,
    answers: np.ndarray,
    cluster: SparkCluster,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Answers are those of `score_many`, and the key is in no plan, log or event of Spark."""
    caplog.set_level(logging.DEBUG)
    result = scored(frame, f"http://127.0.0.1:{server.port}/score", PRIMARY, "x", "y array<float>")
    assert result.columns == ["id", "x", "a", "b", "c", "d", "y"]
    ids, values = ids_and_values(result, "y")
    assert ids.tolist() == list(range(ROWS))
    assert values.tobytes() == answers.tobytes()
    result.explain(mode="formatted")
    result.explain(mode="extended")
    result.groupBy().sum("id").collect()
    capture = capfd.readouterr()
    records = (
        capture.out + capture.err + caplog.text + cluster.written() + result._jdf.queryExecution().toString()
    )
    assert "MapInArrow" in records
    assert PRIMARY not in records


def test_columns_together_are_a_row(frame: Any, server: LiveServer, answers: np.ndarray) -> None:
    """As an array of their numbers is."""
    address = f"http://127.0.0.1:{server.port}/score"
    first_rows = frame.where("id < 5000")
    _, values = ids_and_values(scored(first_rows, address, PRIMARY, list("abcd"), "y array<float>"), "y")
    assert values.tobytes() == answers[:5000].astype(np.float32).tobytes()


def test_a_wrong_key_fails_the_query(frame: Any, server: LiveServer, cluster: SparkCluster) -> None:
    """With the client's error, and without the key."""
    from pyspark.errors import PythonException

    wrong = "a-wrong-key-of-the-tests-0003"
    result = scored(frame, f"http://127.0.0.1:{server.port}/score", wrong, "x", "y array<double>")
    with pytest.raises(PythonException, match="Unauthorized") as failure:
        result.collect()
    assert wrong not in str(failure.value)
    assert wrong not in cluster.written()
