"""What the runtime alone reaches: parse a body with pysimdjson, run ONNX Runtime, in one process, no HTTP.

`python -m stoker_bench.offline MODEL BODY --threads N` reads seconds, one number a line, on stdin and answers
each with one line of JSON; so it can take its turns among servers without loading the model anew.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import numpy as np
import orjson

from stoker_bench.contest import Slice
from stoker_bench.servers import BenchedServerError

if TYPE_CHECKING:
    from types import TracebackType

    from stoker_bench.contest import Case

__all__ = ["NAME_PREFIX", "OfflineRuntime", "main"]

NAME_PREFIX = "pysimdjson + ONNX Runtime"
STOP_TIMEOUT_S = 5.0


class OfflineRuntime:
    """The offline loop in a process of its own, as a contestant; a context manager that ends the process.

    Args:
        model: ONNX file with one float32 input.
        body: File with the request's JSON body.
        threads: Intra-op threads of ONNX Runtime; 0 leaves its default, one a core.
    """

    def __init__(self, model: Path, body: Path, threads: int) -> None:
        self.name = f"{NAME_PREFIX}, {'1 thread' if threads == 1 else 'default threads'}"
        self._command = [sys.executable, "-m", "stoker_bench.offline", str(model), str(body)]
        self._command += ["--threads", str(threads)]

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
        told = orjson.loads(line)
        bodies_per_s = told["bodies"] / told["duration_s"]
        return Slice(
            rows_per_s=bodies_per_s * case.rows,
            requests_per_s=bodies_per_s,
            errors=0,
            p50_ms=told["p50_ms"],
            p99_ms=told["p99_ms"],
            cpu_us_per_request=told["cpu_s"] * 1e6 / told["bodies"],
        )


def _measure(session: Any, body: bytes, seconds: float) -> dict[str, float]:
    import simdjson

    parser = simdjson.Parser()
    tensor = session.get_inputs()[0]
    latencies_s: list[float] = []
    cpu_s, started_s = time.process_time(), time.perf_counter()
    ended_s = started_s
    while not latencies_s or ended_s - started_s < seconds:
        began_s = ended_s
        rows: Any = cast("Any", parser.parse(body))["data"]
        flat = np.frombuffer(rows.as_buffer(of_type="d"), np.float64)
        batch = flat.reshape(len(rows), *tensor.shape[1:]).astype(np.float32)
        del rows  # the parser is reusable only once nothing refers to its document
        session.run(None, {tensor.name: batch})
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


def main() -> None:
    """Answer each line of stdin, a number of seconds, with the figures of a loop of that length."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("body", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    body = args.body.read_bytes()
    _measure(session, body, seconds=0.2)
    for line in sys.stdin:
        print(orjson.dumps(_measure(session, body, float(line))).decode(), flush=True)


if __name__ == "__main__":
    main()
