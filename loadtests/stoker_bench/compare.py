"""`make compare`: other servers and Stoker in turns, and Azure's server with an entry script beside Stoker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from stoker.errors import OperatorError
from stoker_bench.benches.lineup import BenchOptions, Lineup
from stoker_bench.benches.script_bench import script_launch
from stoker_bench.contestants.baselines import HANDWRITTEN, handwritten_launch
from stoker_bench.contestants.contest import Case, standing
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE
from stoker_bench.contestants.peers import (
    AZUREML,
    GRAPH_SCRIPT_PEER,
    PEERS,
    SERVICES,
    Peer,
    Site,
    build_environment,
    graph_script_launch,
)
from stoker_bench.contestants.servers import ended_by_sigterm
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.networks.trained_run import ROW_SHAPE, classes_of, trained_run
from stoker_bench.reports import Bound, CaseResult, Report, at_least, rows_per_s

CONNECTIONS = 64
LEAST_TIMES = 5
WORKERS = (1, 2, 3)
"""Azure's server starts so many processes; which number is best depends on the machine."""
ENTRY_SCRIPT = "entry-script"
RUN_FOLDER = "mnist-run"
INTERRUPTED = 130


def compare_servers(peers: list[Peer], environments: Path, options: BenchOptions) -> Report:
    """Compare peers and Stoker with the hand-written service; every process started here has ended at the return.

    Raises:
        OperatorError: A server does not start or answers wrongly, or an environment cannot be built.
    """
    if not SERVICES.exists():
        raise OperatorError(f"{SERVICES} is missing; run this in a checkout of the repository")
    built = {peer.package: build_environment(peer, environments) for peer in peers}
    with Lineup(options, row_shape=ROW_SHAPE) as lineup:
        mlp, model = seeded_mlp(), lineup.folder / "model" / "mlp.onnx"
        model.parent.mkdir()
        mlp.save(model)
        servers = [lineup.start(lineup.launch(model), metrics=True)]
        for peer in peers:
            site = Site(built[peer.package], model, lineup.folder / peer.package)
            site.scratch.mkdir()
            servers.append(lineup.start(peer.launch(site), peer.dialect, ready_when_it_scores=True))
        servers.append(lineup.start(handwritten_launch(model)))
        lineup.check(servers, mlp.logits, options.concurrency, max_rows=1)
        report = lineup.report("MLP 784-300-100-10")
        report.notes += [f"{peer.package} {peer.version}: {peer.configuration}" for peer in peers]
        for connections in options.concurrency:
            report.cases.append(lineup.contest(servers, Case(connections), yardstick=HANDWRITTEN))
        return report


def compare_scripts(script: Path, run: Path, environments: Path, options: BenchOptions) -> Report:
    """Compare Azure's server with Stoker; every process started here has ended when this returns or raises.

    Args:
        script: Answers classes for rows of 784 floats.
        run: A run folder of `stoker train mnist`; a missing one is trained.

    Raises:
        OperatorError: A server does not start or answers wrongly, or the environment cannot be built.
    """
    peer = GRAPH_SCRIPT_PEER
    environment = build_environment(peer, environments)
    with Lineup(options, row_shape=ROW_SHAPE) as lineup:
        site = Site(environment, trained_run(run), lineup.folder / "scratch")
        site.scratch.mkdir()
        peers = [lineup.start(graph_script_launch(site, script, workers)) for workers in WORKERS]
        launch = script_launch(script, site.model, lineup.folder / "workspace", "auto", name="Stoker")
        servers = [lineup.start(launch, metrics=True), *peers]
        lineup.check(servers, classes_of(site.model), [CONNECTIONS])
        report = lineup.report(f"TensorFlow 1 entry script, {peer.package} {peer.version}", _script_bounds)
        report.cases.append(lineup.contest(servers, Case(CONNECTIONS)))
        return report


def _script_bounds(result: CaseResult) -> Iterator[Bound]:
    """Yield the ratio to the peer at its best."""
    peers = (name for name in result.baselines if name.startswith(AZUREML))
    best = max(peers, key=lambda name: standing(result.slices[name]).rows_per_s)
    text = f"requests/s over {best} ≥ {LEAST_TIMES}"
    yield from at_least(text, result.ratio(rows_per_s, best), LEAST_TIMES)


def main() -> int:
    """Run the comparison and print its tables."""
    args = _parser().parse_args()
    environments = args.environments.absolute()
    options = BenchOptions(seconds=args.seconds, rounds=args.rounds, concurrency=tuple(args.concurrency))
    documents: dict[str, Any] = {}
    try:
        with ended_by_sigterm():
            if peers := [peer for peer in PEERS if peer.package in args.only]:
                found = compare_servers(peers, environments, options)
                documents["model"] = found.as_json()
                print(found, flush=True)
            if ENTRY_SCRIPT in args.only:
                run = args.run or environments / RUN_FOLDER
                scripts = compare_scripts(args.script, run, environments, options)
                documents["entry_script"] = scripts.as_json()
                print(scripts)
    except OperatorError as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2))
    return 0


def _parser() -> argparse.ArgumentParser:
    names = [*(peer.package for peer in PEERS), ENTRY_SCRIPT]
    parser = argparse.ArgumentParser(prog="python -m stoker_bench.compare", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        help=f"peers to run, and {ENTRY_SCRIPT} for the comparison of that (default: all)",
    )
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 48], help="default: 64 48")
    parser.add_argument("--seconds", type=int, default=3, help="length of a slice (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default: 5)")
    parser.add_argument("--environments", type=Path, default=Path(".compare"), help="default: .compare")
    parser.add_argument(
        "--script",
        type=Path,
        default=GRAPH_SCORE,
        help="TensorFlow 1 entry script (default: the bench's own)",
    )
    parser.add_argument(
        "--run",
        type=Path,
        help="run folder of `stoker train mnist` for the script, trained where there is none "
        f"(default: {RUN_FOLDER} among the environments)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(".compare/comparison.json"), help="default: %(default)s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
