"""The results of a comparison: Markdown tables for the README and JSON with every slice."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from stoker.errors import OperatorError
from stoker_bench.benches.lineup import BenchOptions, Lineup
from stoker_bench.benches.script_bench import classes_of, script_launch, trained_run
from stoker_bench.contestants.baselines import HANDWRITTEN, handwritten_launch
from stoker_bench.contestants.contest import (
    Case,
    LoadedServer,
    Slice,
    check_answers,
    disturbance,
    ratio,
    standing,
)
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
from stoker_bench.contestants.servers import Launch, RunningServer, ended_by_sigterm, stoker_launch
from stoker_bench.generators.load_generator import LoadGenerator, pick_generator
from stoker_bench.generators.scoring_request import DATA_LISTS, Dialect, random_rows
from stoker_bench.networks.onnx_graphs import WIDTHS, Mlp, seeded_mlp
from stoker_bench.reports import (
    Bound,
    Report,
    describe_machine,
    describe_run,
    figure,
    markdown,
    rows_per_s,
)

MEGA = 1e6


@dataclass
class Entry:
    """One contestant and its measurements; the lists by connections are parallel, one slice per round."""

    name: str
    version: str
    configuration: str
    launch: Callable[[], Launch]
    dialect: Dialect = DATA_LISTS
    slices: dict[int, list[Slice]] = field(default_factory=dict)
    yardsticks: dict[int, list[Slice]] = field(default_factory=dict)
    """The hand-written service's slices right before `slices`."""
    start_s: list[float] = field(default_factory=list)
    """Seconds from starting the process to its first right answer, one a round."""
    pss_bytes: list[int] = field(default_factory=list)
    """Memory of the whole tree after its slices, one a round."""


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison."""

    generator: str
    seconds: int
    rounds: int
    entries: list[Entry]
    yardstick: Entry

    def table(self, connections: int) -> str:
        """Return the Markdown table of one concurrency, the fastest first."""
        headings = ["server", "how it was run", "× hand-written", "requests/s", "CPU µs/request"]
        headings += ["p50 ms", "p99 ms", "PSS MB", "start-up s"]
        ranked = sorted(self.entries, key=lambda entry: -(_times(entry, connections) or 0))
        rows = [_cells(entry, connections) for entry in ranked]
        rows.append(_cells(self.yardstick, connections))
        return markdown(headings, rows)

    def __str__(self) -> str:
        machine = describe_machine()
        summary = (
            f"One row of 784 floats as JSON a request, load by {self.generator} on the same "
            f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}; "
            f"medians of {self.rounds} rounds of {self.seconds} s, × = median ratio to the hand-written "
            "service in the slice right before."
        )
        parts = [summary]
        for connections in self.yardstick.slices:
            parts += [f"{connections} connections:", self.table(connections)]
            parts += [
                f"{entry.name} failed {errors:,} requests here, so its figures do not count."
                for entry in self.entries
                if (errors := standing(entry.slices[connections]).errors)
            ]
        every = [taken for entry in self.entries for slices in entry.slices.values() for taken in slices]
        if disturbed := disturbance(every):
            parts.append(disturbed)
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return every slice, its yardstick and the ratios."""
        return {
            **describe_run(self.generator, self.seconds, self.rounds),
            "servers": [_entry_json(entry) for entry in (*self.entries, self.yardstick)],
        }


def _times(entry: Entry, connections: int) -> float | None:
    return ratio(lambda taken: taken.requests_per_s, entry.slices[connections], entry.yardsticks[connections])


def _cells(entry: Entry, connections: int) -> list[str]:
    medians = standing(entry.slices[connections])
    figures = [_times(entry, connections), medians.requests_per_s, medians.cpu_us_per_request]
    figures += [medians.p50_ms, medians.p99_ms]
    figures += [statistics.median(entry.pss_bytes) / MEGA, statistics.median(entry.start_s)]
    return [f"{entry.name} {entry.version}".strip(), entry.configuration, *map(figure, figures)]


def _entry_json(entry: Entry) -> dict[str, Any]:
    cases = {
        str(connections): {
            "median": asdict(standing(slices)),
            "times_handwritten": _times(entry, connections),
            "slices": [asdict(taken) for taken in slices],
            "handwritten_slices": [asdict(taken) for taken in entry.yardsticks[connections]],
        }
        for connections, slices in entry.slices.items()
    }
    facts = {"name": entry.name, "version": entry.version, "configuration": entry.configuration}
    return {**facts, "start_s": entry.start_s, "pss_bytes": entry.pss_bytes, "connections": cases}


ROW_SHAPE = (WIDTHS[0],)
CONNECTIONS = 64
LEAST_TIMES = 5
WORKERS = (1, 2, 3)
"""Azure's server starts so many processes; which number is best depends on the machine."""


@dataclass
class ScriptComparison(Report):
    """The results for the script; there is one case, and its first contestant is Stoker."""

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
        script: Answers classes for rows of 784 floats.
        run: A run folder of `stoker train mnist`; a missing one is trained.

    Raises:
        OperatorError: A server does not start or answers wrongly, or the environment cannot be built.
    """
    peer = GRAPH_SCRIPT_PEER
    environment = build_environment(peer, environments)
    with Lineup(BenchOptions(seconds=seconds, rounds=rounds), row_shape=ROW_SHAPE) as lineup:
        site = Site(environment, trained_run(run), lineup.folder / "scratch")
        site.scratch.mkdir()
        peers = [lineup.start(graph_script_launch(site, script, workers)) for workers in WORKERS]
        launch = script_launch(script, site.model, lineup.folder / "workspace", "auto", name="Stoker")
        servers = [lineup.start(launch, metrics=True), *peers]
        lineup.check(servers, classes_of(site.model), [CONNECTIONS])
        subject = f"TensorFlow 1 entry script, {peer.package} {peer.version}"
        report = lineup.report(ScriptComparison, subject)
        report.cases.append(lineup.contest(servers, Case(CONNECTIONS)))
        return report


ENTRY_SCRIPT = "entry-script"
RUN_FOLDER = "mnist-run"
WARM_UP_S = 1
INTERRUPTED = 130


def compare(
    peers: list[Peer], environments: Path, concurrency: tuple[int, ...], seconds: int, rounds: int
) -> Comparison:
    """Run the comparison; every process started here has ended when this returns or raises."""
    if not SERVICES.exists():
        raise OperatorError(f"{SERVICES} is missing; run this in a checkout of the repository")
    sites = {peer.package: build_environment(peer, environments) for peer in peers}
    generator, mlp = pick_generator(), seeded_mlp()
    with tempfile.TemporaryDirectory(prefix="stoker-compare-") as temporary:
        folder = Path(temporary)
        model = folder / "model" / "mlp.onnx"
        model.parent.mkdir()
        mlp.save(model)
        entries = [_stoker_entry(model, folder)]
        for peer in peers:
            site = Site(sites[peer.package], model, folder / peer.package)
            site.scratch.mkdir()
            entries.append(_peer_entry(peer, site))
        yardstick = _yardstick_entry(model)
        found = Comparison(generator.description, seconds, rounds, entries, yardstick)
        _run_in_turns(found, concurrency, generator, mlp, folder)
    return found


def _stoker_entry(model: Path, folder: Path) -> Entry:
    key = secrets.token_urlsafe(32)

    def launch() -> Launch:
        return stoker_launch(model, folder / "workspace", key)

    return Entry("Stoker", metadata.version("stoker"), "as it comes", launch)


def _peer_entry(peer: Peer, site: Site) -> Entry:
    return Entry(peer.package, peer.version, peer.configuration, lambda: peer.launch(site), peer.dialect)


def _yardstick_entry(model: Path) -> Entry:
    return Entry(
        HANDWRITTEN, "", "Starlette, orjson, ONNX Runtime, 1 worker", lambda: handwritten_launch(model)
    )


def _run_in_turns(
    found: Comparison, concurrency: tuple[int, ...], generator: LoadGenerator, mlp: Mlp, folder: Path
) -> None:
    turns = found.rounds * len(found.entries)
    progress = tqdm(total=turns, disable=None, leave=False, unit="turn", file=sys.stderr)
    with progress, contextlib.ExitStack() as stack:
        yardstick = _enter(found.yardstick, generator, mlp, folder, stack)
        for number in range(found.rounds):
            for entry in found.entries:
                progress.set_postfix_str(entry.name)
                if progress.disable:
                    _report_progress(f"round {number + 1} of {found.rounds}: {entry.name}")
                with contextlib.ExitStack() as turn:
                    server = _enter(entry, generator, mlp, folder, turn)
                    for connections in concurrency:
                        pair = (found.yardstick, yardstick)
                        _pair(entry, server, pair, Case(connections), found.seconds)
                    assert server.tree is not None
                    entry.pss_bytes.append(server.tree.memory().pss_bytes)
                progress.update()
        assert yardstick.tree is not None
        found.yardstick.pss_bytes.append(yardstick.tree.memory().pss_bytes)
        # The yardstick's ratio to itself is 1 by definition.
        found.yardstick.yardsticks = found.yardstick.slices


def _enter(
    entry: Entry, generator: LoadGenerator, mlp: Mlp, folder: Path, stack: contextlib.ExitStack
) -> LoadedServer:
    """Start a contestant, check its answers, warm it up."""
    launch = entry.launch()
    log = folder / f"{entry.name.replace(' ', '-')}.log"
    body = entry.dialect.encode(random_rows(1, ROW_SHAPE))
    running = stack.enter_context(RunningServer(launch, log, ready_body=body))
    entry.start_s.append(running.start_s)
    server = LoadedServer(
        entry.name, launch.uri, generator, entry.dialect, ROW_SHAPE, tree=running.tree, key=launch.key
    )
    check_answers(server, ROW_SHAPE, mlp.logits, max_rows=1)
    server.run(Case(connections=8), WARM_UP_S)
    return server


def _pair(
    entry: Entry, server: LoadedServer, yardstick: tuple[Entry, LoadedServer], case: Case, seconds: int
) -> None:
    """Take a slice of the hand-written service, then one of the contestant."""
    measure = yardstick[1].run(case, seconds)
    for slices in (entry.yardsticks, yardstick[0].slices):
        slices.setdefault(case.connections, []).append(measure)
    entry.slices.setdefault(case.connections, []).append(server.run(case, seconds))


def _report_progress(step: str) -> None:
    print(f"compare: {step} …", file=sys.stderr, flush=True)


def main() -> int:
    """Run the comparison and print its tables."""
    args = _parser().parse_args()
    environments = args.environments.absolute()
    documents: dict[str, Any] = {}
    try:
        with ended_by_sigterm():
            peers = [peer for peer in PEERS if peer.package in args.only]
            if peers:
                found = compare(peers, environments, tuple(args.concurrency), args.seconds, args.rounds)
                documents["model"] = found.as_json()
                print(found, flush=True)
            if ENTRY_SCRIPT in args.only:
                run = args.run or environments / RUN_FOLDER
                scripts = compare_scripts(args.script, run, environments, args.seconds, args.rounds)
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
