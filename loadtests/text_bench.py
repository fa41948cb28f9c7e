"""Embeddings of texts by Stoker, beside other servers and ONNX Runtime alone, in turns.

Each text is a request of its own in OpenAI's form. The servers run the same small encoder with random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson
import uvloop

from stoker.importing.sentence_transformers import pooled_model
from stoker.settings.text_input import TextInput
from stoker.wire.texts import Tokenizing
from stoker_bench.contestants.contest import Case, Clocks, Slice, disturbance, ratio, run_in_turns, standing
from stoker_bench.contestants.peers import SERVICES, Peer, Site, build_environment
from stoker_bench.contestants.servers import (
    HOST,
    HTTP_OK,
    Launch,
    RunningServer,
    ended_by_sigterm,
    free_port,
    post,
    stoker_launch,
)
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.closed_loop import closed_loop, http_caller
from stoker_bench.generators.scoring_request import ScoringRequest, scoring_request
from stoker_bench.reports import aligned, describe_machine, figure

STOKER, ALONE, KEY = "Stoker", "ONNX Runtime alone", "the-key-of-the-bench"
TORCH = "torch==2.15.0"
SERVICE = ("fastapi==0.165.0", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0", "orjson==3.13.0")
OFFLINE = {"CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TOLERANCE = 1e-5


def _service(library: str, most: int) -> Callable[[Site], Launch]:
    def launch(site: Site) -> Launch:
        port = free_port()
        command = [site.programs / "python", "-m", "uvicorn", "embedding_service:app", "--app-dir", SERVICES]
        command += ["--host", HOST, "--port", str(port), "--log-level", "warning", "--no-access-log"]
        environment = {**OFFLINE, "MODEL_PATH": str(site.model), "LIBRARY": library, "MAX_BATCH": str(most)}
        return Launch(library, tuple(map(str, command)), port, "", "/v1/embeddings", environment)

    return launch


def _infinity(site: Site) -> Launch:
    port = free_port()
    command = [site.programs / "infinity_emb", "v2", "--model-id", site.model, "--host", HOST, "--port", port]
    command += ["--engine", "torch", "--device", "cpu", "--batch-size", "32", "--url-prefix", "/v1"]
    command += ["--no-bettertransformer", "--log-level", "error"]
    environment = {**OFFLINE, "DO_NOT_TRACK": "1"}
    return Launch("infinity", tuple(map(str, command)), port, "", "/v1/embeddings", environment)


PEERS = (
    Peer(
        "sentence-transformers",
        ("sentence-transformers==6.2.0", TORCH, "onnx==1.23.2", "onnxscript==0.7.2", *SERVICE),
        "PyTorch, behind FastAPI, up to 64 that wait, in parts of 8",
        _service("sentence_transformers", 64),
    ),
    Peer(
        "fastembed",
        ("fastembed==0.9.1", *SERVICE),
        "behind FastAPI, up to 4 together",
        _service("fastembed", 4),
    ),
    Peer(
        "infinity-emb", ("infinity-emb[server,torch]==0.0.78", TORCH), "PyTorch, up to 32 together", _infinity
    ),
)


@dataclass(frozen=True)
class Server:
    """A running server under load of texts."""

    name: str
    running: RunningServer
    requests: Sequence[bytes]

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn."""
        before, launch = Clocks.read(self.running.tree), self.running.launch
        figures, _ = uvloop.run(
            closed_loop(HOST, launch.port, http_caller(*self.requests), case.connections, seconds)
        )
        spent = Clocks.read(self.running.tree).since(before)
        return Slice(
            figures.requests_per_s, figures.requests_per_s, figures.errors, figures.p50_ms, figures.p99_ms,
            foreign_cores=spent.foreign_cores,
        )  # fmt: skip


class Alone:
    """ONNX Runtime with all rows before it: batches of rows of nearly one length, of the size that is fastest."""

    name = ALONE

    def __init__(self, model: Path, rows: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._rows = rows[rows[:, 0].argsort(kind="stable")]
        self._size = min((1, 4, 16, 64), key=self._time_s)

    def _batches(self, size: int) -> list[np.ndarray]:
        rows = [self._rows[start : start + size] for start in range(0, len(self._rows), size)]
        return [rows[place] for place in np.random.default_rng(3).permutation(len(rows))]

    def _time_s(self, size: int) -> float:
        begun_s, count = time.perf_counter(), 0
        for rows in self._batches(size):
            self._run(rows)
            count += len(rows)
            if time.perf_counter() > begun_s + 2:
                break
        return (time.perf_counter() - begun_s) / count

    def _run(self, rows: np.ndarray) -> None:
        tokens = rows[:, 1 : 1 + rows[:, 0].max()].astype(np.int64)
        mask = (np.arange(tokens.shape[1]) < rows[:, :1]).astype(np.int64)
        self._session.run(
            None, {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        )

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn; as many callers as there are rows."""
        del case
        begun_s, count = time.perf_counter(), 0
        while True:
            for rows in self._batches(self._size):
                self._run(rows)
                count += len(rows)
                if (lasted_s := time.perf_counter() - begun_s) > seconds:
                    return Slice(count / lasted_s, count / lasted_s, 0)


def check(server: Server, texts: Sequence[str], expected: np.ndarray) -> float:
    """Return the largest difference of a server's embeddings from the library's; raises BenchedServerError."""
    differences = []
    for text, wanted in zip(texts, expected, strict=False):
        request = _request(server.running.launch, text)
        status, body = post(request.host, request.port, request.path, request.body, request.headers)
        if status != HTTP_OK:
            raise BenchedServerError(f"{server.name} answered {status}: {body[:200]!r}")
        found = np.array(orjson.loads(body)["data"][0]["embedding"], np.float32)
        differences.append(float(np.abs(found - wanted).max()))
    return max(differences)


def _request(launch: Launch, text: str) -> ScoringRequest:
    return scoring_request(launch.uri, orjson.dumps({"input": text}), launch.key)


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 64], help="default: 1 16 64")
    parser.add_argument("--seconds", type=int, default=10, help="length of a slice (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--environments", type=Path, default=Path(".compare"), help="default: .compare")
    parser.add_argument("--output", type=Path, help="file for every slice as JSON")
    args = parser.parse_args()
    environments = {peer: build_environment(peer, args.environments.absolute()) for peer in PEERS}
    with tempfile.TemporaryDirectory() as scratch, ended_by_sigterm(), ExitStack() as stack:
        folder = Path(scratch)
        model = folder / "model"
        python = environments[PEERS[0]] / "bin" / "python"
        subprocess.run(
            [python, SERVICES / "text_encoder.py", model], env={**os.environ, **OFFLINE}, check=True
        )
        texts, expected = json.loads((model / "texts.json").read_text()), np.load(model / "expected.npy")
        pooled = pooled_model(model, folder / "pooled")
        own = stoker_launch(pooled, folder / "workspace", KEY)
        launches = [(STOKER, "as it comes", replace(own, score_path="/v1/embeddings"))]
        launches += [
            (peer.package, peer.configuration, peer.launch(Site(environments[peer], model, folder)))
            for peer in PEERS
        ]
        contestants: list[Any] = []
        described = {}
        for name, configuration, launch in launches:
            try:
                running = stack.enter_context(RunningServer(launch, folder / f"{name}.log"))
                requests = [_request(launch, text).http_bytes for text in texts]
                server = Server(name, running, requests)
                described[name] = f"{configuration}; answers differ by {check(server, texts, expected):.1g}"
            except BenchedServerError as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
                continue
            contestants.append(server)
        encoded = np.array([text.encode() for text in texts], object)
        rows = Tokenizing(TextInput(pooled / "tokenizer.json", 512)).encode(encoded).rows
        contestants.append(Alone(pooled / "model.onnx", rows))
        found = {}
        for callers in args.callers:
            taken = run_in_turns(contestants, Case(callers), args.seconds, args.rounds, _tell)
            found[callers] = taken
            print(f"\n{callers} callers:\n\n{_table(taken, described)}\n", flush=True)
        every = [one for taken in found.values() for slices in taken.values() for one in slices]
        print(disturbance(every) or "")
    if args.output:
        content = {"machine": describe_machine(), "texts": described, "slices": found}
        args.output.write_bytes(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2))
    return 0


def _tell(name: str, taken: Slice) -> None:
    print(f"{name}: {taken.rows_per_s:.1f} texts/s, {taken.errors} errors", file=sys.stderr, flush=True)


def _table(taken: dict[str, list[Slice]], described: dict[str, str]) -> str:
    rows = []
    for name, slices in taken.items():
        median = standing(slices)
        times = ratio(lambda one: one.rows_per_s, taken[STOKER], slices)
        cells = [figure(each) for each in (median.rows_per_s, median.p50_ms, median.p99_ms, times)]
        rows.append([name, described.get(name, "no HTTP, no tokens to make"), *cells])
    return aligned(["", "how it was run", "texts/s", "p50 ms", "p99 ms", "Stoker ×"], rows)


if __name__ == "__main__":
    sys.exit(main())
