"""`stoker bench --scripts`: undecorated entry scripts, each with every way in which Stoker batches them.

The scripts are those of Azure: a body of JSON as text in, a list of classes out. Each is served several times over,
merged, gathered and one request at a time, and these servers take turns.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stoker_bench.benches.lineup import BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, standing
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE, ONNX_SCORE
from stoker_bench.contestants.servers import Launch, stoker_launch
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.networks.trained_run import ROW_SHAPE, classes_of, trained_run
from stoker_bench.reports import Bound, CaseResult, Report, say

CONNECTIONS = (64,)
LEAST_BATCH = 8
WAYS = ("merge", "handle", "none")


def _merges(result: CaseResult) -> Iterator[Bound]:
    """Yield whether merged batches are large enough."""
    batch_rows = standing(result.slices[result.first]).mean_batch_rows
    if batch_rows is not None:
        text = f"mean batch, merged > {LEAST_BATCH} at {result.title}"
        yield Bound(text, batch_rows, batch_rows > LEAST_BATCH)


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


def run_script_bench(options: BenchOptions) -> Report:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answers wrongly, there is nothing to train with, or a load
            generator fails.
    """
    generator, connections = OwnGenerator(), options.concurrency or CONNECTIONS
    report = Report(generator.description, options.seconds, options.rounds, "entry scripts", _merges)
    scripts = {"TensorFlow 1 script": options.script or GRAPH_SCORE, "ONNX script": ONNX_SCORE}
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary:
        say("training the model, unless its run folder exists")
        run = trained_run(options.run_folder or Path(temporary, "run"))
        for subject, script in scripts.items():
            with Lineup(options, generator, ROW_SHAPE) as lineup:
                launches = [
                    script_launch(script, run, lineup.folder / way, way, options.frontends) for way in WAYS
                ]
                servers = [lineup.start(launch, metrics=True) for launch in launches]
                lineup.check(servers, classes_of(run), connections)
                report.cases += [lineup.contest(servers, Case(each), subject) for each in connections]
    return report
