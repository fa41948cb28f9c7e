"""`stoker bench`: closed-loop load on a server, with the baselines measured in the same run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "load a server and compare it, in turns, with what the same machine reaches without it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
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
    parser.add_argument("--seconds", type=_positive, default=3, help="length of a slice (default: 3)")
    parser.add_argument(
        "--rounds", type=_positive, default=5, help="slices of each server a case (default: 5)"
    )
    parser.add_argument(
        "--concurrency",
        type=_positive,
        nargs="+",
        default=[64, 48, 1],
        metavar="N",
        help="connections, one case each with one row a request (default: 64 48 1)",
    )
    parser.add_argument(
        "--rows",
        type=_positive,
        default=256,
        help="rows a request in a further case on 4 connections, compared with pysimdjson and ONNX Runtime "
        "alone; 1 leaves the case out (default: 256)",
    )
    parser.add_argument(
        "--frontends",
        type=_positive,
        metavar="N",
        help="frontend processes of the server that the bench starts",
    )
    parser.add_argument(
        "--no-baselines", action="store_true", help="measure Stoker alone; then there are no ratios"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write every slice and ratio as JSON")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the bench, print its report, and return 0; figures never make it fail, a failing server does."""
    import orjson

    from stoker_bench.bench import BenchOptions, run_bench
    from stoker_bench.servers import ended_by_sigterm

    options = BenchOptions(
        uri=args.uri,
        key=args.key,
        model=args.model,
        seconds=args.seconds,
        rounds=args.rounds,
        concurrency=tuple(args.concurrency),
        rows=args.rows,
        frontends=args.frontends,
        baselines=not args.no_baselines,
    )
    with ended_by_sigterm():
        report = run_bench(options)
    print(report)
    if args.output:
        document = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        args.output.write_bytes(document)
    return 0
