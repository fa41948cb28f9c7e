"""Spark: `mapInPandas(stoker.offline.spark(…), …)`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.offline import spark

sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed: the extra spark")

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, and there is none"),
    # It says at each call that it does not fully support pandas 3 yet.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """Spark on this machine, with two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            sql.SparkSession.builder.master("local[2]")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        yield session
        session.stop()


def test_a_million_rows_are_answered_as_by_a_server(
    engine: Any, tmp_path: Path, model: Path, rows: np.ndarray, answers: np.ndarray
) -> None:
    """Bit for bit, in two Python workers, each of which has loaded the model once; ids go through."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"id": pa.array(np.arange(len(rows))), "x": lists})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100_000)
    frame = engine.read.parquet(str(tmp_path / "rows.parquet")).repartition(4)
    scored = frame.mapInPandas(spark(model, "cpu", keep=("id",)), "id long, y array<float>")
    scored.write.parquet(str(tmp_path / "scored"))
    found = pq.read_table(tmp_path / "scored").sort_by("id")
    assert found["id"].to_numpy().tolist() == list(range(len(rows)))
    values = found["y"].combine_chunks().flatten().to_numpy()
    assert values.tobytes() == answers.tobytes()
