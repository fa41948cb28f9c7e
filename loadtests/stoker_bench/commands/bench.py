"""`stoker bench`: closed-loop load on a server, with the baselines measured in the same run."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from stoker.errors import InvalidSettings, OperatorError
from stoker.system.extras import how_to_install, onnx_missing
from stoker_bench.reports import Report

_COMMON: Final = ("seconds", "rounds", "concurrency", "frontends")
_SCRIPT_OPTIONS: Final = ("run_folder", "script")
_OPTIONS: Final = (*_COMMON, *_SCRIPT_OPTIONS, "uri", "model", "rows", "baselines", "against")


class _Bench(NamedTuple):
    """A bench that an option chooses.

    Attributes:
        run: Its module and function.
        options: The options that go with it.
        needs: A package, and the extra that installs it.
    """

    help: str
    run: str
    options: tuple[str, ...]
    needs: tuple[str, str] | None = None


_BENCHES: Final = {
    "scripts": _Bench(
        "bench entry scripts instead: one for TensorFlow 1 and one for ONNX, undecorated, each with its "
        "requests merged, gathered and run one by one",
        "benches.script_bench:run_script_bench",
        (*_COMMON, *_SCRIPT_OPTIONS),
    ),
    "protocols": _Bench(
        "bench the Open Inference Protocol instead: binary tensors beside JSON at /score, and beside "
        "ONNX Runtime alone",
        "benches.protocol_bench:run_protocol_bench",
        (*_COMMON, "model", "rows"),
    ),
    "grpc": _Bench(
        "bench the Open Inference Protocol over gRPC instead, beside bare servers that give the same message "
        "back: one of grpc.aio, and one in C++ where there are a compiler and gRPC's library",
        "benches.grpc_bench:run_grpc_bench",
        (*_COMMON, "model", "against"),
        ("hpack", "grpc"),
    ),
}
_USUAL: Final = _Bench(
    "", "benches.bench:run_bench", (*_COMMON, "uri", "model", "rows", "baselines", "against")
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    benches = parser.add_mutually_exclusive_group()
    for name, bench in _BENCHES.items():
        benches.add_argument(f"--{name}", action="store_true", help=bench.help)
    parser.add_argument(
        "--uri",
        help="scoring URI of a running server, such as http://127.0.0.1:8080/score; without it the bench "
        "starts `stoker serve` itself on a free port in a temporary workspace",
    )
    parser.add_argument(
        "--key",
        default=os.environ.get("STOKER_PRIMARY_KEY"),
        help="bearer key of the server at --uri (default: $STOKER_PRIMARY_KEY)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="MODEL.onnx",
        help="ONNX file with one float32 input of fixed row shape; with --uri, the one that is served there "
        "(default: an MLP 784-300-100-10 with seeded random weights)",
    )
    parser.add_argument("--seconds", type=_positive, metavar="N", help="length of a slice (default: 3)")
    parser.add_argument(
        "--rounds",
        type=_positive,
        metavar="N",
        help="slices of each server a case (default: 5)",
    )
    parser.add_argument(
        "--concurrency",
        type=_positive,
        nargs="+",
        metavar="N",
        help="connections, one case each with one row a request (default: 64 48 1; 64 1 with --grpc, "
        "else 64)",
    )
    parser.add_argument(
        "--rows",
        type=_positive,
        metavar="N",
        help="rows a request in a further case on 4 connections, compared with what the runtime reaches alone; "
        "1 leaves the case out (default: 256)",
    )
    parser.add_argument(
        "--frontends",
        type=_positive,
        metavar="N",
        help="frontend processes of the server that the bench starts",
    )
    parser.add_argument(
        "--no-baselines",
        dest="baselines",
        action="store_false",
        default=None,
        help="measure Stoker alone; then there are no ratios",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PYTHON",
        help="the Python of another environment, such as that of an earlier version's clone: its Stoker takes turns "
        "with this one; also with --grpc",
    )
    parser.add_argument(
        "--run",
        dest="run_folder",
        type=Path,
        metavar="DIR",
        help="run folder of `stoker train mnist` for the scripts; trained there, briefly, if it does not exist "
        "(default: a temporary one)",
    )
    parser.add_argument(
        "--script",
        type=Path,
        metavar="SCORE.py",
        help="the entry script for TensorFlow 1 (default: the bench's own, of the form of Azure's how-to)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write every slice and ratio as JSON")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the bench, print its report, and return 0; figures never make it fail, a failing server does.

    Raises:
        OperatorError: An option belongs to another bench, or the bench cannot be run.
    """
    import orjson

    try:
        from stoker_bench.contestants.servers import ended_by_sigterm
    except ModuleNotFoundError as error:
        raise OperatorError(
            f"the bench needs packages that are not installed ({error.name}); {how_to_install('bench')}"
        ) from error
    if args.output and not args.output.parent.is_dir():
        # Before the minutes that the bench takes, not behind them.
        raise InvalidSettings(
            f"--output {args.output}: there is no folder {args.output.parent}; make it first"
        )
    with ended_by_sigterm():
        report = _report(args)
    print(report)
    if args.output:
        document = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        args.output.write_bytes(document)
    return 0


def _report(args: argparse.Namespace) -> Report:
    name = next((name for name in _BENCHES if getattr(args, name)), "")
    bench = _BENCHES[name] if name else _USUAL
    given = _given(args, name, bench.options)
    if args.uri is None and find_spec("onnxruntime") is None:
        raise InvalidSettings(f"the bench serves ONNX models; {onnx_missing()}")
    if bench.needs is not None and find_spec(bench.needs[0]) is None:
        raise InvalidSettings(
            f"--{name} needs packages that are missing here; {how_to_install(bench.needs[1])}"
        )
    place, _, function = bench.run.partition(":")
    module = import_module(f"stoker_bench.{place}")
    options = module.BenchOptions(**given)
    report: Report = getattr(module, function)(options)
    return report


def _given(args: argparse.Namespace, bench: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that were given among these names; the bench itself has the defaults."""
    given = {name: value for name in _OPTIONS if (value := getattr(args, name)) is not None}
    for name in given.keys() - set(names):
        option = {"baselines": "no-baselines", "run_folder": "run"}.get(name, name)
        raise InvalidSettings(
            f"--{option} does not go with --{bench}" if bench else f"--{option} goes with --scripts alone"
        )
    if "concurrency" in given:
        given["concurrency"] = tuple(given["concurrency"])
    return given if bench else {"key": args.key, **given}
