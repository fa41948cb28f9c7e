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
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
import uvloop

from stoker.importing.sentence_transformers import pooled_model
from stoker.settings.text_input import TextInput
from stoker.wire.texts import Tokenizing
from stoker_bench.contestants.contest import (
    Case,
    Contestant,
    LoadedServer,
    Slice,
    disturbance,
    ratio,
    run_in_turns,
    standing,
)
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
from stoker_bench.generators.load_generator import LoadFigures
from stoker_bench.generators.scoring_request import DATA_LISTS, ScoringRequest, scoring_request
from stoker_bench.reports import aligned, describe_machine, figure

STOKER, ALONE, KEY = "Stoker", "ONNX Runtime alone", "the-key-of-the-bench"
TORCH = "torch==2.15.0"
SERVICE = ("fastapi==0.165.0", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0", "orjson==3.13.0")
OFFLINE = {"CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TOLERANCE = 1e-5


def _service(library: str, most: int) -> Callable[[Site], Launch]:
    def launch(site: Site) -> Launch:
        command = ["python", "-m", "uvicorn", "embedding_service:app", "--app-dir", str(SERVICES)]
        command += ["--host", HOST, "--log-level", "warning", "--no-access-log"]
        environment = {"MODEL_PATH": str(site.model), "LIBRARY": library, "MAX_BATCH": str(most)}
        return _launch(site, command, environment)

    return launch


def _infinity(site: Site) -> Launch:
    command = ["infinity_emb", "v2", "--model-id", str(site.model), "--host", HOST, "--url-prefix", "/v1"]
    command += ["--engine", "torch", "--device", "cpu", "--batch-size", "32"]
    return _launch(site, [*command, "--no-bettertransformer", "--log-level", "error"], {"DO_NOT_TRACK": "1"})


def _launch(site: Site, command: list[str], environment: dict[str, str]) -> Launch:
    program, port = str(site.programs / command[0]), free_port()
    argv = (program, *command[1:], "--port", str(port))
    return Launch(program, argv, port, "", "/v1/embeddings", {**OFFLINE, **environment})


PEERS = (
    Peer(
        "sentence-transformers",
        ("sentence-transformers==6.2.0", TORCH, "onnx==1.23.2", "onnxscript==0.7.2", *SERVICE),
        "PyTorch, behind FastAPI, up to 64 that wait, in parts of 8",
        _service("sentence_transformers", 64),
    ),
    Peer("fastembed", ("fastembed==0.9.1", *SERVICE), "FastAPI, up to 4 together", _service("fastembed", 4)),
    Peer("infinity-emb", ("infinity-emb[server,torch]==0.0.78", TORCH), "up to 32 together", _infinity),
)


class TextLoad:
    """Load of texts, each a request of its own."""

    description = "all texts in turn"

    def __init__(self, launch: Launch, texts: Sequence[str]) -> None:
        bodies = [orjson.dumps({"input": text}) for text in texts]
        self._requests = [scoring_request(launch.uri, body, launch.key) for body in bodies]

    def check(self, expected: np.ndarray) -> None:
        """Raise BenchedServerError if embeddings of the first texts are not those of the library."""
        for request, wanted in zip(self._requests, expected, strict=False):
            status, body = post(request.host, request.port, request.path, request.body, request.headers)
            if status != HTTP_OK:
                raise BenchedServerError(f"{request.host}:{request.port} answered {status}: {body[:200]!r}")
            found = np.array(orjson.loads(body)["data"][0]["embedding"])
            if np.abs(found - wanted).max() > TOLERANCE:
                raise BenchedServerError(f"{request.host}:{request.port} answers unlike the library")

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """Send all texts again and again to the server of a request."""
        caller = http_caller(*(one.http_bytes for one in self._requests))
        figures: LoadFigures
        figures, _ = uvloop.run(closed_loop(request.host, request.port, caller, connections, seconds))
        return figures


class Alone:
    """ONNX Runtime with all rows before it: batches of rows of nearly one length, of the size that is fastest."""

    name = ALONE

    def __init__(self, model: Path, rows: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._rows = rows[rows[:, 0].argsort(kind="stable")]
        self._size = max((1, 4, 16, 64), key=lambda size: self._texts_per_s(size, 2))

    def _texts_per_s(self, size: int, seconds: float) -> float:
        random, begun_s, count = np.random.default_rng(3), time.perf_counter(), 0
        while True:
            # Each row once, then again: a sample of batches has other lengths.
            for start in size * random.permutation(len(self._rows) // size):
                self._run(self._rows[start : start + size])
                count += size
                if (lasted_s := time.perf_counter() - begun_s) > seconds:
                    return count / lasted_s

    def _run(self, rows: np.ndarray) -> None:
        ids = rows[:, 1 : 1 + rows[:, 0].max()].astype(np.int64)
        mask = (np.arange(ids.shape[1]) < rows[:, :1]).astype(np.int64)
        segments = np.zeros_like(ids)
        self._session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments})

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn; as many callers as there are rows."""
        del case
        texts_per_s = self._texts_per_s(self._size, seconds)
        return Slice(texts_per_s, texts_per_s, 0)


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
        command = [environments[PEERS[0]] / "bin" / "python", SERVICES / "text_encoder.py", model]
        subprocess.run(command, env={**os.environ, **OFFLINE}, check=True)
        texts, expected = json.loads((model / "texts.json").read_text()), np.load(model / "expected.npy")
        pooled = pooled_model(model, folder / "pooled")
        own = replace(stoker_launch(pooled, folder / "workspace", KEY), score_path="/v1/embeddings")
        launches = {STOKER: own}
        launches |= {peer.package: peer.launch(Site(environments[peer], model, folder)) for peer in PEERS}
        contestants: list[Contestant] = []
        for name, launch in launches.items():
            tree = stack.enter_context(RunningServer(launch, folder / f"{name}.log")).tree
            load = TextLoad(launch, texts)
            load.check(expected)
            contestants.append(LoadedServer(name, launch.uri, load, DATA_LISTS, (), tree=tree))
        encoded = np.array([text.encode() for text in texts], object)
        rows = Tokenizing(TextInput(pooled / "tokenizer.json", 512)).encode(encoded).rows
        contestants.append(Alone(pooled / "model.onnx", rows))
        found = {}
        for callers in args.callers:
            found[callers] = run_in_turns(contestants, Case(callers), args.seconds, args.rounds, _tell)
            print(f"\n{callers} callers:\n\n{_table(found[callers])}\n", flush=True)
        every = [one for taken in found.values() for slices in taken.values() for one in slices]
        print(disturbance(every) or "")
    if args.output:
        content = {"machine": describe_machine(), "slices": found}
        args.output.write_bytes(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2))
    return 0


def _tell(name: str, taken: Slice) -> None:
    print(f"{name}: {taken.rows_per_s:.1f} texts/s, {taken.errors} errors", file=sys.stderr, flush=True)


def _table(taken: dict[str, list[Slice]]) -> str:
    configured = {peer.package: peer.configuration for peer in PEERS}
    rows = []
    for name, slices in taken.items():
        median = standing(slices)
        times = ratio(lambda one: one.rows_per_s, taken[STOKER], slices)
        cells = [figure(each) for each in (median.rows_per_s, median.p50_ms, median.p99_ms, times)]
        rows.append([name, configured.get(name, ""), *cells])
    return aligned(["", "how it was run", "texts/s", "p50 ms", "p99 ms", "Stoker ×"], rows)


if __name__ == "__main__":
    sys.exit(main())
