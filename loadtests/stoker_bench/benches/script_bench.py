"""`stoker bench --scripts`: undecorated entry scripts, each with every way in which Stoker batches them.

The scripts are those of Azure: a body of JSON as text in, a list of classes out. Each is served several times over,
merged, gathered and one request at a time, and these servers take turns.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import simdjson
from numpy.typing import NDArray

from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import MergedCalls
from stoker.scripts.result_parts import divide_result
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest, merge, row_count
from stoker_bench.benches.lineup import BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, standing
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE, ONNX_SCORE
from stoker_bench.contestants.servers import Launch, stoker_launch
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows
from stoker_bench.networks.onnx_graphs import WIDTHS
from stoker_bench.networks.served_model import given_model
from stoker_bench.reports import Bound, Report, aligned, figure, say

ROW_SHAPE = (WIDTHS[0],)
CONNECTIONS = (64,)
LEAST_BATCH = 8
WAYS = ("merge", "handle", "none")


@dataclass
class ScriptReport(Report):
    """The results of a bench of entry scripts; every case is one script, and its first contestant merges."""

    merge_cost: MergeCost | None = None

    def bounds(self) -> list[Bound]:
        """Return whether merged batches are large enough, for each script."""
        found = []
        for result in self.cases:
            batch_rows = standing(result.slices[result.first]).mean_batch_rows
            if batch_rows is not None:
                text = f"mean batch, merged > {LEAST_BATCH} at {result.title}"
                found.append(Bound(text, batch_rows, batch_rows > LEAST_BATCH))
        return found

    def notes(self) -> list[str]:
        """Return the table of the costs of merging."""
        return [_cost_table(self.merge_cost)] if self.merge_cost else []

    def further(self) -> dict[str, Any]:
        """Return the costs of merging."""
        return {"merge_cost": asdict(self.merge_cost) if self.merge_cost else None}


def _cost_table(cost: MergeCost) -> str:
    rows = [
        [step.name, step.side, "merging" if step.merging else "every script", figure(step.us)]
        for step in cost.steps
    ]
    rows.append(["what merging adds", "", "", figure(cost.merging_us)])
    rows.append(["the envelope of every script", "", "", figure(cost.envelope_us)])
    table = aligned([f"steps for batches of {cost.requests}", "process", "for", "µs/request"], rows)
    return f"Stoker's own work on a request of one row ({cost.body_bytes:,} bytes), outside of the server\n\n{table}"


def script_launch(
    script: Path, run: Path, workspace: Path, batching: str, frontends: int | None = None, name: str = ""
) -> Launch:
    """Serve an entry script for the models of a run folder, batched in one of the ways of `--batching`."""
    options = ["--model-dir", str(run), "--batching", batching]
    return stoker_launch(
        script,
        workspace,
        secrets.token_urlsafe(32),
        frontends,
        name=name or f"Stoker, {batching}",
        options=options,
    )


def run_script_bench(options: BenchOptions) -> ScriptReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answers wrongly, there is nothing to train with, or a load
            generator fails.
    """
    generator, connections = pick_generator(), options.concurrency or CONNECTIONS
    report = ScriptReport(generator.description, options.seconds, options.rounds, "entry scripts")
    scripts = {"TensorFlow 1 script": options.script or GRAPH_SCORE, "ONNX script": ONNX_SCORE}
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary:
        run = trained_run(options.run_folder or Path(temporary, "run"))
        for subject, script in scripts.items():
            with Lineup(options, generator, ROW_SHAPE) as lineup:
                launches = [
                    script_launch(script, run, lineup.folder / way, way, options.frontends) for way in WAYS
                ]
                servers = [lineup.start(launch, metrics=True) for launch in launches]
                lineup.check(servers, classes_of(run), connections)
                report.cases += [lineup.contest(servers, Case(each), subject) for each in connections]
    body = DATA_LISTS.encode(random_rows(1, ROW_SHAPE))
    batches = [standing(result.slices[result.first]).mean_batch_rows for result in report.cases]
    mean_batch = statistics.mean([rows for rows in batches if rows is not None] or [1])
    report.merge_cost = measure_merge_cost(body, max(1, round(mean_batch)))
    return report


REPEATS: Final = 7
CALLS: Final = 100
REQUEST_ID: Final = b"7c0c7a5e-0d3f-4f0e-9a52-0f6c5f1f3a10"


@dataclass(frozen=True)
class Step:
    """One step on the path of a request.

    Attributes:
        side: The process that does it.
        merging: Whether only merging needs it; all requests of entry scripts take the other steps.
    """

    name: str
    side: str
    merging: bool
    us: float


@dataclass(frozen=True)
class MergeCost:
    """The steps for requests of one size."""

    body_bytes: int
    requests: int
    steps: tuple[Step, ...]

    @property
    def merging_us(self) -> float:
        """The cost of merging."""
        return sum(step.us for step in self.steps if step.merging)

    @property
    def envelope_us(self) -> float:
        """The other costs of every request of an entry script."""
        return sum(step.us for step in self.steps if not step.merging)


def measure_merge_cost(body: bytes, requests: int) -> MergeCost:
    """Measure the steps for merged calls of `requests` requests with the body `{"data": [row]}`.

    Raises:
        ValueError: The body cannot be merged with others.
    """
    parser = simdjson.Parser()
    if row_count(parser, body) != 1:
        raise ValueError("a body of other than one row cannot be merged here")
    request = ScriptRequest(REQUEST_ID, body, rows=1)
    packed, batch = request.pack(), [request] * requests
    calls = ScriptCalls(_run)
    merged = MergedCalls(calls, key="data", max_rows=requests)
    answer = ScriptAnswer(b"[7]", exec_ns=1)
    packed_answer, result, rows = answer.pack(), [7] * requests, [1] * requests
    bodies = [body] * requests
    works: tuple[tuple[str, str, bool, Callable[[], object], int], ...] = (
        ("count the rows", "frontend", True, lambda: row_count(parser, body), 1),
        ("pack the request", "frontend", False, request.pack, 1),
        ("unpack the request", "device", False, lambda: ScriptRequest.unpack(packed), 1),
        ("find what may be merged", "device", True, lambda: list(merged.batches(batch)), requests),
        ("merge the bodies", "device", True, lambda: merge(bodies), requests),
        ("split the result", "device", True, lambda: divide_result(result, rows), requests),
        ("encode the answer", "device", False, lambda: calls.encode([7], 1), 1),
        ("pack the answer", "device", False, answer.pack, 1),
        ("unpack the answer", "frontend", False, lambda: ScriptAnswer.unpack(packed_answer), 1),
    )
    steps = tuple(Step(name, side, merging, _us(work, each)) for name, side, merging, work, each in works)
    return MergeCost(len(body), requests, steps)


def _run(raw_data: str) -> None:
    """Stand for a script that is never called."""
    del raw_data


def _us(step: Callable[[], object], requests: int = 1) -> float:
    """Return microseconds per request, the best of several tries: disturbances only make a try longer."""
    calls = max(1, CALLS // requests)
    step()
    return min(timeit.repeat(step, number=calls, repeat=REPEATS)) / calls / requests * 1e6


EPOCHS = 2
"""Enough that classes are far apart; how well the model reads digits does not matter here."""
ONNX_FILE = "model.onnx"
NEEDED = ("model/mnist-tf.model.meta", ONNX_FILE, "sample_input.json")


def trained_run(folder: Path) -> Path:
    """Return the run folder of `stoker train mnist`, after a short training if there is none."""
    if not folder.exists():
        say("training the model")
        command = [sys.executable, "-m", "stoker.cli", "train", "mnist", "--network", "mlp"]
        command += ["--epochs", str(EPOCHS), "--output", str(folder)]
        trained = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if trained.returncode:
            raise BenchedServerError(f"stoker train failed: {trained.stdout.strip()}")
    if missing := [name for name in NEEDED if not (folder / name).exists()]:
        raise BenchedServerError(
            f"{folder} has no {missing[0]}: it is not the run folder of `stoker train mnist`; "
            "name one, or a folder that does not exist yet"
        )
    return folder


def classes_of(run: Path) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return a function from rows [n, 784] to an entry script's classes [n, 1], by the run's ONNX model."""
    model = given_model(run / ONNX_FILE)

    def classes(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.int64] = model.outputs(rows).argmax(axis=1)
        return found[:, None].astype(np.float32)

    return classes
