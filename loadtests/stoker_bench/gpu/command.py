"""The command line of `loadtests/gpu_bench.py`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from stoker.errors import InvalidSettings, OperatorError
from stoker_bench.contestants.servers import ended_by_sigterm
from stoker_bench.generators.closed_loop import allow_many_connections
from stoker_bench.gpu.acceptance import AcceptanceBench, AcceptanceOptions, quick
from stoker_bench.gpu.bench import PARTS, GpuBench, GpuBenchOptions
from stoker_bench.gpu.models import NETWORKS, PRECISIONS, WIRE_DTYPES, Network
from stoker_bench.gpu.poisson import PoissonOptions
from stoker_bench.gpu.server import BODIES

USUAL = GpuBenchOptions()
METRICS = "metrics.json"
INTERRUPTED = 130
SUMMARIES = {
    "offline": "ONNX Runtime alone: rows/s and the time of each step, by batch size",
    "serve": "through Stoker: rows/s and latencies of one-row requests, beside what the runtime reaches alone",
    "poisson": "the highest rate of Poisson arrivals whose 99th percentile stays within a limit",
    "acceptance": "all bounds for a GPU in a table, and peers on the same device; about five minutes on an H200",
    "all": "offline, serve and poisson, in about ten minutes",
}
QUICK = GpuBenchOptions(
    networks=("mlp",),
    precisions=("fp32",),
    batches=(1, 8),
    batch_seconds=0.02,
    max_batch_rows=32,
    frontends=1,
    callers=(1, 4),
    seconds=0.3,
    processes=1,
    poisson=PoissonOptions(
        limit_ms=1000, seconds=0.3, confirm_seconds=0.3, steps=1, processes=1, connections=16
    ),
)
"""Settings that show whether everything works, and measure nothing."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; options that are not given are absent from its result."""
    made = argparse.ArgumentParser(
        prog="gpu_bench.py",
        description="Stoker on a GPU, beside what ONNX Runtime reaches alone in the same run.",
        epilog="poisson takes the last of --models in the last of --precisions.",
    )
    commands = made.add_subparsers(dest="part", required=True, metavar="PART")
    for name, summary in SUMMARIES.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            argument_default=argparse.SUPPRESS,
        )
        if name == "acceptance":
            _add_acceptance(command)
            continue
        _add_common(command)
        wanted = set(PARTS) if name == "all" else {name}
        _add_offline(command)
        if wanted - {"offline"}:
            _add_server(command)
        if "serve" in wanted:
            _add_serve(command)
        if "poisson" in wanted:
            _add_poisson(command)
    return made


def _add_common(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("what is measured")
    group.add_argument("--device", metavar="DEVICE", help=f"cpu, cuda:N or a UUID (default {USUAL.device})")
    group.add_argument(
        "--models", dest="networks", nargs="+", choices=NETWORKS, help="networks (default: all)"
    )
    group.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, help="what they compute in (default: fp32 fp16)"
    )
    group.add_argument(
        "--input",
        dest="wire_dtype",
        choices=WIRE_DTYPES,
        help="numbers that callers send (default: uint8 to resnet50, float32 to the others)",
    )
    group.add_argument(
        "--mnist",
        action="append",
        type=Path,
        metavar="DIR",
        help="run folder of `stoker train mnist`, for the mlp or the cnn; repeatable (default: random weights)",
    )
    group.add_argument("--seed", type=int, metavar="N", help=f"of random weights (default {USUAL.seed})")
    group.add_argument("--quick", action="store_true", help="try everything out with the mlp, in seconds")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures, anew after each part")


def _add_acceptance(command: argparse.ArgumentParser) -> None:
    usual = AcceptanceOptions()
    command.add_argument("--device", metavar="DEVICE", help=f"cpu, cuda:N or a UUID (default {usual.device})")
    command.add_argument(
        "--seconds", type=float, metavar="S", help=f"for each load (default {usual.seconds:g})"
    )
    command.add_argument(
        "--processes", type=_count, metavar="N", help=f"of the load generator (default {usual.processes})"
    )
    command.add_argument(
        "--frontends", type=_count, metavar="N", help=f"HTTP processes (default {usual.frontends})"
    )
    command.add_argument(
        "--quick", action="store_true", help="try everything out with small models, in seconds"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write all figures")


def _accept(args: argparse.Namespace) -> int:
    """Measure all bounds; return 0 if anything could be measured."""
    given = {name: value for name, value in vars(args).items() if name not in ("part", "json", "quick")}
    options = AcceptanceOptions(**given)
    allow_many_connections()
    with tempfile.TemporaryDirectory(prefix="stoker-gpu-bench-") as folder:
        found = AcceptanceBench(quick(options) if "quick" in args else options, Path(folder)).run()
    print(f"\n{found.table()}", flush=True)
    if "json" in args:
        args.json.write_bytes(orjson.dumps(dataclasses.asdict(found), option=orjson.OPT_INDENT_2))
    return 0 if found.values else 1


def _add_offline(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the runtime alone")
    group.add_argument(
        "--batches",
        nargs="+",
        type=_count,
        metavar="ROWS",
        help=f"batch sizes (default {_shown(USUAL.batches)})",
    )
    group.add_argument(
        "--batch-seconds",
        type=float,
        metavar="S",
        help=f"for each batch size, way, and once more with copies (default {USUAL.batch_seconds:g})",
    )
    group.add_argument(
        "--provider-option",
        dest="provider_options",
        action="append",
        metavar="NAME=VALUE",
        help="further option of ONNX Runtime's CUDA provider; repeatable",
    )


def _add_server(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the server (default: its own defaults)")
    group.add_argument(
        "--max-batch-rows", type=_count, metavar="ROWS", help=f"(default {USUAL.max_batch_rows})"
    )
    group.add_argument("--instances", type=_count, metavar="N", help="batches at the same time")
    group.add_argument("--frontends", type=_count, metavar="N", help="HTTP processes")
    group.add_argument("--execution", choices=("auto", "copied", "bound", "graph"), help="how batches run")


def _add_serve(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("closed-loop load")
    group.add_argument("--bodies", nargs="+", choices=BODIES, help="bodies (default: both)")
    group.add_argument(
        "--callers", nargs="+", type=_count, metavar="N", help=f"(default {_shown(USUAL.callers)})"
    )
    group.add_argument(
        "--seconds", type=float, metavar="S", help=f"for each number of callers (default {USUAL.seconds:g})"
    )
    group.add_argument(
        "--processes",
        type=_count,
        metavar="N",
        help=f"of the load generator, one core each (default {USUAL.processes})",
    )


def _add_poisson(command: argparse.ArgumentParser) -> None:
    usual = USUAL.poisson
    group = command.add_argument_group("Poisson arrivals")
    group.add_argument(
        "--limit-ms", type=float, metavar="MS", help=f"what p99 may be (default {usual.limit_ms:g})"
    )
    group.add_argument(
        "--poisson-seconds",
        type=float,
        metavar="S",
        help=f"how long each rate is tried (default {usual.seconds:g}); the one found, twice as long",
    )
    group.add_argument(
        "--steps", type=_count, metavar="N", help=f"halvings of the range of rates (default {usual.steps})"
    )
    group.add_argument(
        "--poisson-processes",
        type=_count,
        metavar="N",
        help=f"that share the arrivals (default {usual.processes})",
    )
    group.add_argument(
        "--poisson-seed", type=int, metavar="N", help=f"of the arrivals (default {usual.seed})"
    )


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _shown(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def options_of(args: argparse.Namespace) -> GpuBenchOptions:
    """Return the options of a parsed command line."""
    given: dict[str, Any] = vars(args).copy()
    usual = QUICK if given.pop("quick", False) else USUAL
    part = given.pop("part")
    given.pop("json", None)
    given["mnist"] = {_network_of(folder): folder for folder in given.pop("mnist", [])}
    if bad := [option for option in given.get("provider_options", []) if "=" not in option]:
        raise InvalidSettings(f"--provider-option takes NAME=VALUE, got {bad[0]}")
    poisson = _poisson_of(given, usual.poisson)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    parts = PARTS if part == "all" else (part,)
    return dataclasses.replace(usual, parts=parts, poisson=poisson, **given)


def _poisson_of(given: dict[str, Any], usual: PoissonOptions) -> PoissonOptions:
    """Take the settings of the arrivals out of those that were given."""
    names = {
        "limit_ms": "limit_ms",
        "poisson_seconds": "seconds",
        "steps": "steps",
        "poisson_processes": "processes",
        "poisson_seed": "seed",
    }
    chosen = {own: given.pop(name) for name, own in names.items() if name in given}
    if "seconds" in chosen:
        chosen["confirm_seconds"] = 2 * chosen["seconds"]
    return dataclasses.replace(usual, **chosen)


def _network_of(folder: Path) -> Network:
    try:
        network = orjson.loads((folder / METRICS).read_bytes())["network"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidSettings(f"{folder} is no run folder of `stoker train mnist`: {error}") from error
    if network not in NETWORKS:
        raise InvalidSettings(f"{folder} holds a {network}; the bench takes an mlp or a cnn")
    return network  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; return 0 if all parts could be measured."""
    # A bench that is ended must take its servers with it.
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(given)
    try:
        with ended_by_sigterm():
            if args.part == "acceptance":
                return _accept(args)
            bench = GpuBench(options_of(args), vars(args).get("json"), " ".join(given))
            report = bench.run()
    except OperatorError as error:
        print(f"gpu_bench.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 1 if report.failures else 0
