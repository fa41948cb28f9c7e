"""`make compare`: the same model and request through Stoker and through other servers, in one run.

First an ONNX model, then an entry script for TensorFlow 1 (`stoker_bench.benches.compare_scripts`). For the model
each contestant is started for its turn alone, since some servers spin while idle. Every slice lies right
after one of the hand-written service, which stays up and idles at no cost: that pair gives the ratio.
The virtual environments are built once, in .compare/.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from tqdm import tqdm

from stoker.errors import OperatorError
from stoker_bench.benches.compare_scripts import compare_scripts
from stoker_bench.contestants.baselines import HANDWRITTEN, handwritten_launch
from stoker_bench.contestants.contest import Case
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE
from stoker_bench.contestants.loaded_server import LoadedServer, check_answers
from stoker_bench.contestants.peer_environments import build_environment
from stoker_bench.contestants.peers import PEERS, SERVICES, Peer, Site
from stoker_bench.contestants.servers import RunningServer, ended_by_sigterm, stoker_launch
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.networks.mlp import WIDTHS, Mlp, seeded_mlp
from stoker_bench.reports.compare_report import Comparison, Entry

if TYPE_CHECKING:
    from stoker_bench.contestants.servers import Launch
    from stoker_bench.generators.load_generator import LoadGenerator

__all__ = ["compare", "main"]

ROW_SHAPE = (WIDTHS[0],)
ENTRY_SCRIPT = "entry-script"
RUN_FOLDER = "mnist-run"
WARM_UP_S = 1
INTERRUPTED = 130


def compare(
    peers: list[Peer], environments: Path, concurrency: tuple[int, ...], seconds: int, rounds: int
) -> Comparison:
    """Run the comparison; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: If a server does not start or answers wrongly.
    """
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
        _take_turns(found, concurrency, generator, mlp, folder)
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


def _take_turns(
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
                    _say(f"round {number + 1} of {found.rounds}: {entry.name}")
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


def _say(what: str) -> None:
    print(f"compare: {what} …", file=sys.stderr, flush=True)


def main() -> int:
    """Run the comparison as the command line says and print its tables."""
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
