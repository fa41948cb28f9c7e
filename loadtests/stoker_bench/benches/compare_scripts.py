"""A TensorFlow 1 entry script under Stoker and under the server that such scripts come from, in turns."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stoker_bench.benches.lineup import Lineup
from stoker_bench.benches.script_bench import script_launch
from stoker_bench.contestants.contest import Case, standing
from stoker_bench.contestants.loaded_server import check_answers
from stoker_bench.contestants.peer_environments import build_environment
from stoker_bench.contestants.peers import AZUREML, GRAPH_SCRIPT_PEER, Site, graph_script_launch
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.networks.mlp import WIDTHS
from stoker_bench.networks.trained_run import classes_of, trained_run
from stoker_bench.progress import say
from stoker_bench.reports.report import Bound, Report, rows_per_s

__all__ = ["ScriptComparison", "compare_scripts"]

ROW_SHAPE = (WIDTHS[0],)
CONNECTIONS = 64
LEAST_TIMES = 5
WARM_UP_S = 2
WORKERS = (1, 2, 3)
"""Azure's server starts so many processes; which number is best depends on the machine."""


@dataclass
class ScriptComparison(Report):
    """What the comparison found; there is one case, and its first contestant is Stoker."""

    def bounds(self) -> list[Bound]:
        """Return the ratio to the peer at its best."""
        found = []
        for result in self.cases:
            best = max(
                (name for name in result.baselines if name.startswith(AZUREML)),
                key=lambda name: standing(result.slices[name]).rows_per_s,
            )
            times = result.ratio(rows_per_s, best)
            assert times is not None
            found.append(Bound(f"requests/s over {best} ≥ {LEAST_TIMES}", times, times >= LEAST_TIMES))
        return found


def compare_scripts(
    script: Path, run: Path, environments: Path, seconds: int, rounds: int
) -> ScriptComparison:
    """Run the comparison; every process started here has ended when this returns or raises.

    Args:
        script: Answers classes to rows of 784 floats.
        run: Run folder of `stoker train mnist`; trained where there is none.
        environments: Where the peer's virtual environment is, or is built.
        seconds: Length of a slice.
        rounds: Slices of each server.

    Raises:
        OperatorError: A server does not start or answers wrongly, or the environment cannot be built.
    """
    peer = GRAPH_SCRIPT_PEER
    environment = build_environment(peer, environments)
    generator = pick_generator()
    with tempfile.TemporaryDirectory(prefix="stoker-compare-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        site = Site(environment, trained_run(run), folder / "scratch")
        site.scratch.mkdir()
        lineup = Lineup(folder, stack, generator, ROW_SHAPE)
        peers = [lineup.start(graph_script_launch(site, script, workers)) for workers in WORKERS]
        launch = script_launch(script, site.model, folder / "workspace", "auto", name="Stoker")
        servers = [lineup.start(launch, metrics=True), *peers]
        say("checking answers")
        classes = classes_of(site.model)
        for server in servers:
            check_answers(server, ROW_SHAPE, classes)
            server.run(Case(CONNECTIONS), WARM_UP_S)
        subject = f"TensorFlow 1 entry script, {peer.package} {peer.version}"
        result = lineup.contest(servers, Case(CONNECTIONS), seconds, rounds)
        return ScriptComparison(generator.description, seconds, rounds, subject, [result])
