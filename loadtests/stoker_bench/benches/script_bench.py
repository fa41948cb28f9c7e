"""`stoker bench --scripts`: undecorated entry scripts, each with every way in which Stoker batches them.

The scripts are those of Azure: a body of JSON as text in, a list of classes out. Each is served several times over,
merged, gathered and one request at a time, and these servers take turns.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker_bench.benches.lineup import Lineup
from stoker_bench.benches.merge_cost import measure_merge_cost
from stoker_bench.contestants.contest import Case, standing
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE, ONNX_SCORE
from stoker_bench.contestants.loaded_server import check_answers
from stoker_bench.contestants.servers import stoker_launch
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows
from stoker_bench.networks.mlp import WIDTHS
from stoker_bench.networks.trained_run import classes_of, trained_run
from stoker_bench.progress import say
from stoker_bench.reports.report import Bound, Report
from stoker_bench.reports.tables import aligned, figure

if TYPE_CHECKING:
    from stoker_bench.benches.merge_cost import MergeCost
    from stoker_bench.contestants.loaded_server import LoadedServer
    from stoker_bench.contestants.servers import Launch

__all__ = ["ScriptBenchOptions", "ScriptReport", "run_script_bench", "script_launch"]

ROW_SHAPE = (WIDTHS[0],)
WARM_UP_S = 1
LEAST_BATCH = 8
WAYS = ("merge", "handle", "none")


@dataclass(frozen=True)
class ScriptBenchOptions:
    """What `stoker bench --scripts` was asked for; see its help texts."""

    run_folder: Path | None = None
    script: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = (64,)
    frontends: int | None = None


@dataclass
class ScriptReport(Report):
    """What a bench of entry scripts found; every case is one script, and its first contestant merges."""

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
        """Return the table of what merging costs."""
        return [_cost_table(self.merge_cost)] if self.merge_cost else []

    def further(self) -> dict[str, Any]:
        """Return what merging costs."""
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


def run_script_bench(options: ScriptBenchOptions) -> ScriptReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answers wrongly, there is nothing to train with, or a load
            generator fails.
    """
    generator = pick_generator()
    report = ScriptReport(generator.description, options.seconds, options.rounds, "entry scripts")
    scripts = {"TensorFlow 1 script": options.script or GRAPH_SCORE, "ONNX script": ONNX_SCORE}
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary:
        run = trained_run(options.run_folder or Path(temporary, "run"))
        for number, (subject, script) in enumerate(scripts.items()):
            with contextlib.ExitStack() as stack:
                folder = Path(temporary, str(number))
                folder.mkdir()
                lineup = Lineup(folder, stack, generator, ROW_SHAPE)
                servers = [
                    lineup.start(
                        script_launch(script, run, folder / way, way, options.frontends), metrics=True
                    )
                    for way in WAYS
                ]
                _check(servers, run, options)
                report.cases += [
                    lineup.contest(servers, Case(connections), options.seconds, options.rounds, subject)
                    for connections in options.concurrency
                ]
    body = DATA_LISTS.encode(random_rows(1, ROW_SHAPE))
    batches = [standing(result.slices[result.first]).mean_batch_rows for result in report.cases]
    mean_batch = statistics.mean([rows for rows in batches if rows is not None] or [1])
    report.merge_cost = measure_merge_cost(body, max(1, round(mean_batch)))
    return report


def _check(servers: list[LoadedServer], run: Path, options: ScriptBenchOptions) -> None:
    say("checking answers")
    classes = classes_of(run)
    for server in servers:
        check_answers(server, ROW_SHAPE, classes)
        server.run(Case(max(options.concurrency)), WARM_UP_S)
