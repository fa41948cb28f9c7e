"""The runtime alone in one process, without HTTP: ONNX Runtime, with or without reading the body.

`python -m stoker_bench.contestants.offline MODEL (--body FILE | --rows N) --threads N` reads seconds from stdin, one
number per line, and answers each with a line of JSON; so it can take turns with servers without reloading the model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import numpy as np
import orjson

from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import random_rows

RUNTIME = "ONNX Runtime"
NAME_PREFIX = f"pysimdjson + {RUNTIME}"
STOP_TIMEOUT_S = 5.0


class OfflineRuntime:
    """The offline loop in a process of its own, as a contestant; a context manager that ends the process.

    Args:
        model: An ONNX file with one float32 input.
        threads: Intra-op threads of ONNX Runtime; 0 for its default, one per core.
        work: The repeated work: a file with a body to read and run, or a number of rows to run from memory.
    """

    def __init__(self, model: Path, threads: int, work: Path | int) -> None:
        rows_alone = isinstance(work, int)
        parts = RUNTIME if rows_alone else NAME_PREFIX
        self.name = f"{parts}, {'1 thread' if threads == 1 else 'default threads'}"
        self._command = [sys.executable, "-m", "stoker_bench.contestants.offline", str(model)]
        self._command += ["--rows" if rows_alone else "--body", str(work), "--threads", str(threads)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._questions = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._questions.close()
        self._answers.close()

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn; the case's rows are those of the body that the process was given."""
        try:
            self._questions.write(f"{seconds}\n")
            self._questions.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchedServerError(f"{self.name} ended; its complaint is above")
        figures = orjson.loads(line)
        bodies_per_s = figures["bodies"] / figures["duration_s"]
        return Slice(
            rows_per_s=bodies_per_s * case.rows,
            requests_per_s=bodies_per_s,
            errors=0,
            p50_ms=figures["p50_ms"],
            p99_ms=figures["p99_ms"],
            cpu_us_per_request=figures["cpu_s"] * 1e6 / figures["bodies"],
        )


def _measure(work: Callable[[], object], seconds: float) -> dict[str, float]:
    """Do the work over and over."""
    latencies_s: list[float] = []
    cpu_s, started_s = time.process_time(), time.perf_counter()
    ended_s = started_s
    while not latencies_s or ended_s - started_s < seconds:
        began_s = ended_s
        work()
        ended_s = time.perf_counter()
        latencies_s.append(ended_s - began_s)
    p50_s, p99_s = np.percentile(latencies_s, (50, 99)).tolist()
    return {
        "bodies": len(latencies_s),
        "duration_s": ended_s - started_s,
        "cpu_s": time.process_time() - cpu_s,
        "p50_ms": p50_s * 1e3,
        "p99_ms": p99_s * 1e3,
    }


def _row_work(session: Any, body: bytes) -> Callable[[], object]:
    """Return a function that parses a body and runs its rows."""
    import simdjson

    parser = simdjson.Parser()
    tensor = session.get_inputs()[0]

    def score() -> None:
        rows: Any = cast("Any", parser.parse(body))["data"]
        flat = np.frombuffer(rows.as_buffer(of_type="d"), np.float64)
        batch = flat.reshape(len(rows), *tensor.shape[1:]).astype(np.float32)
        del rows  # the parser is reusable only once nothing refers to its document
        session.run(None, {tensor.name: batch})

    return score


def _memory_work(session: Any, rows: int) -> Callable[[], object]:
    """Return a function that runs the same rows."""
    tensor = session.get_inputs()[0]
    feeds = {tensor.name: random_rows(rows, tuple(tensor.shape[1:]))}
    return lambda: session.run(None, feeds)


def main() -> None:
    """Answer each line of stdin, a number of seconds, with the figures of a loop of that length."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--body", type=Path, help="file with a body, which is read and run")
    work.add_argument("--rows", type=int, help="run so many rows from memory")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    done = _row_work(session, args.body.read_bytes()) if args.body else _memory_work(session, args.rows)
    _measure(done, seconds=0.2)
    for line in sys.stdin:
        print(orjson.dumps(_measure(done, float(line))).decode(), flush=True)


if __name__ == "__main__":
    main()
