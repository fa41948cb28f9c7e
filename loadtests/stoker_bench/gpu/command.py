"""The command line of `loadtests/gpu_bench.py`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from stoker.errors import OperatorError
from stoker_bench.contestants.servers import ended_by_sigterm
from stoker_bench.generators.closed_loop import allow_many_connections
from stoker_bench.gpu.acceptance import AcceptanceBench, AcceptanceOptions, quick

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="gpu_bench.py",
        description="Stoker on a GPU, beside what the runtimes reach alone in the same run.",
    )
    commands = made.add_subparsers(required=True, metavar="PART")
    summary = "all bounds for a GPU in a table, and peers on the same device; about five minutes on an H200"
    command = commands.add_parser("acceptance", help=summary, description=f"{summary.capitalize()}.")
    usual = AcceptanceOptions()
    command.add_argument(
        "--device",
        metavar="DEVICE",
        default=usual.device,
        help="cpu, cuda:N or a UUID (default: %(default)s)",
    )
    command.add_argument(
        "--quick", action="store_true", help="try everything out with small models, in seconds"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all bounds; return 0 if any could be measured."""
    args = parser().parse_args(arguments)
    options = AcceptanceOptions(args.device)
    try:
        # A bench that is ended must take its servers with it.
        with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="stoker-gpu-bench-") as folder:
            allow_many_connections()
            found = AcceptanceBench(quick(options) if args.quick else options, Path(folder)).run()
    except OperatorError as error:
        print(f"gpu_bench.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"\n{found.table()}", flush=True)
    if args.json:
        args.json.write_bytes(orjson.dumps(dataclasses.asdict(found), option=orjson.OPT_INDENT_2))
    return 0 if found.values else 1
