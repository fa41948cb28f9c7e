"""`python -m stoker_bench.benches.spark_bench`: scoring a Spark data frame by a server, beside `score_many`.

A job that passes its rows through Python shows what Spark itself takes. Run it with the Python of `make test-spark`,
which has PySpark; it needs Java 17.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.contestants.servers import HOST, RunningServer, stoker_launch
from stoker_client import Client
from stoker_client.spark import scored

_KEY: Final = "the-key-of-the-bench-of-spark-1"
_CLASSES: Final = 10
_JOB, _SCORED, _MANY = "pass-through job", "scored", "score_many"
_MOST: Final = 1.2
"""The bound: the time of a scored frame over that of `score_many`."""


def write_model(path: Path, features: int) -> None:
    """Write a softmax over a dense layer: float32 [n, features] to float32 [n, 10]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(1).standard_normal((features, _CLASSES)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])],
        "scores",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, _CLASSES])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_rows(path: Path, rows: np.ndarray, parts: int) -> None:
    """Write rows [n, features] as a column `x` of lists into Parquet, a file for each task."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.mkdir()
    for number, part in enumerate(np.array_split(rows, parts)):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), rows.shape[1])
        pq.write_table(pa.table({"x": lists}), path / f"{number}.parquet")


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


@dataclass(frozen=True, slots=True)
class Taken:
    """The duration of a run: seconds by the clock, and of processors in all processes, the server's among them."""

    wall_s: float
    cpu_s: float


def run_spark_bench(options: argparse.Namespace, folder: Path) -> dict[str, list[Taken]]:
    """Return what each contestant took in each round, by its name.

    Raises:
        BenchedServerError: The server does not start.
    """
    from pyspark.sql import SparkSession

    rows = np.random.default_rng(2).standard_normal((options.rows, options.features)).astype(np.float32)
    write_model(folder / "model.onnx", options.features)
    write_rows(folder / "rows", rows, options.parts)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", HOST)
    builder = SparkSession.builder.master(options.master).config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", HOST).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    launch = stoker_launch(folder / "model.onnx", folder / "workspace", _KEY, options=["--device", "cpu"])
    more = {} if options.batch_rows is None else {"batch_rows": options.batch_rows}
    try:
        with (
            RunningServer(launch, folder / "server.log") as server,
            Client(f"http://{HOST}:{launch.port}/score", _KEY) as client,
        ):
            frame = session.read.parquet(str(folder / "rows"))
            passed = frame.mapInArrow(_same, frame.schema)
            answered = scored(
                frame, f"http://{HOST}:{launch.port}/score", _KEY, "x", "y array<float>", **more
            )

            def save(result: Any) -> None:
                result.write.format("noop").mode("overwrite").save()

            contestants: dict[str, Callable[[], object]] = {
                _JOB: lambda: save(passed),
                _SCORED: lambda: save(answered),
                _MANY: lambda: client.score_many(rows, batch_rows=options.many_rows),
            }
            for work in contestants.values():
                work()
            return _in_turns(contestants, ProcessTree(os.getpid(), *server.tree.roots), options.rounds)
    finally:
        session.stop()


def _in_turns(
    contestants: dict[str, Callable[[], object]], tree: ProcessTree, rounds: int
) -> dict[str, list[Taken]]:
    found: dict[str, list[Taken]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            began_s, used_s = time.perf_counter(), tree.cpu_s()
            work()
            found[name].append(Taken(time.perf_counter() - began_s, tree.cpu_s() - used_s))
    return found


def ratios(found: dict[str, list[Taken]]) -> tuple[float, float]:
    """Return the median time of `scored` over `score_many`, and the same without the pass-through job's time."""
    job_s, scored_s, many_s = (
        statistics.median(each.wall_s for each in found[name]) for name in (_JOB, _SCORED, _MANY)
    )
    return scored_s / many_s, (scored_s - job_s) / many_s


def main() -> int:
    """Run the bench, and print its figures; returns 1 if the bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=4, help="numbers of a row (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", type=int, default=4, help="files of rows, a task each (default: 4)")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--batch-rows", type=int, help="rows of a request of scored (default: its own)")
    parser.add_argument("--many-rows", type=int, default=1024, help="rows of a request of score_many")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run_spark_bench(options, Path(folder))
    for name, taken in found.items():
        wall_s = [each.wall_s for each in taken]
        cpu_s = statistics.median(each.cpu_s for each in taken)
        shown = f"{statistics.median(wall_s):7.2f} s ({min(wall_s):.2f} to {max(wall_s):.2f})"
        print(f"{name:<18}{shown}, {cpu_s:.2f} s of processors")
    whole, beyond = ratios(found)
    print(f"scored over score_many: {whole:.2f} (bound {_MOST}); beyond the pass-through job: {beyond:.2f}")
    return int(whole > _MOST)


if __name__ == "__main__":
    sys.exit(main())
