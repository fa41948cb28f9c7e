"""`stoker simulate`: a model under load, by the server's scheduler and a virtual clock."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.commands.terminal import number_option
from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import InvalidSettings
from stoker.simulation.workload import CURVES, Curve, Stream
from stoker_bench.simulated_loads import Row, simulate_load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "A load of 1 is the rate of the device in full batches. No model is loaded: the server's batching scheduler "
        "runs under a virtual clock."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--seeds",
        type=_numbers(int, 0, 1 << 31),
        default=[101, 102, 103],
        help="random seeds (default: 101,102,103)",
    )
    device = parser.add_argument_group("device")
    device.add_argument(
        "--device",
        default="resnet50-a100",
        help=f"a known device: {', '.join(CURVES)} (default: resnet50-a100); the next options "
        "change its numbers",
    )
    device.add_argument("--batch-ms", type=number_option(float, 0, 1e6), help="fixed time of a batch")
    device.add_argument(
        "--row-ms", type=number_option(float, 1e-6, 1e6), help="time of a batch for each of its rows"
    )
    device.add_argument("--max-batch-rows", type=number_option(int, 1, 65536), help="maximum rows of a batch")
    device.add_argument(
        "--batch-buckets", type=_numbers(int, 1, 65536), help="sizes that batches are padded to"
    )
    _add_load(parser.add_argument_group("requests"))
    policy = parser.add_argument_group("settings of the model")
    policy.add_argument(
        "--late", choices=("answer", "refuse"), default="answer", help="as the setting of a model"
    )
    policy.add_argument(
        "--admission",
        choices=("target", "rows"),
        default="target",
        help="as the setting of a model: target refuses requests on arrival that would be late, rows admits all "
        "(default: target)",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--load",
        type=_numbers(float, 0.001, 100),
        default=[0.3, 0.8, 1.0, 2.0, 4.0],
        help="loads to simulate, 1 is the capacity in full batches (default: 0.3,0.8,1,2,4)",
    )
    group.add_argument(
        "--target-ms",
        type=number_option(float, 0.01, 1e6),
        default=50.0,
        help="latency target in ms (default: 50)",
    )
    group.add_argument(
        "--pattern",
        choices=("poisson", "gamma", "sine", "bursts"),
        default="poisson",
        help="arrival pattern (default: poisson)",
    )
    group.add_argument(
        "--cv",
        type=number_option(float, 0.1, 20),
        default=4.0,
        help="coefficient of variation of the pauses of gamma (default: 4)",
    )
    group.add_argument(
        "--most-rows",
        type=number_option(int, 1, 4096),
        default=1,
        help="maximum rows of a request, Pareto distributed (default: 1)",
    )
    group.add_argument(
        "--seconds",
        type=number_option(float, 0.01, 1e5),
        default=4.0,
        help="duration of the arrivals (default: 4)",
    )


def _numbers(kind: Any, least: float, most: float) -> Any:
    one = number_option(kind, least, most)
    return lambda text: [one(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Simulate, and print a table.

    Raises:
        InvalidSettings: The device is unknown.
    """
    curve = _curve(args)
    rows = list(_rows(args, curve))
    if args.json:
        about = {"device": args.device, "target_ms": args.target_ms}
        content = [about | {_json_key(name): value for name, value in row.items()} for row in rows]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in (*_notes(args, curve), *_table(rows))))
    return 0


def _json_key(column: str) -> str:
    """Return the key of a column: `rows/s` is `rows_per_s`, and `p99 ms` is `p99_ms`."""
    return re.sub(r"\W+", "_", re.sub("/| a ", "_per_", column.lower()))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table, with a head."""
    names = list(rows[0])
    texts = [[str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for cells in (names, *texts):
        first, *others = zip(cells, widths, strict=True)
        yield "  ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)))


def _rows(args: argparse.Namespace, curve: Curve) -> Iterator[Row]:
    policy = BatchPolicy(curve.max_batch_rows, buckets=curve.buckets, late=args.late)
    for load in args.load:
        stream = Stream(
            load * curve.peak_rows_per_s,
            args.target_ms,
            pattern=args.pattern,
            cv=args.cv,
            most_rows=args.most_rows,
        )
        yield {"load": load} | simulate_load(curve, policy, stream, args.seconds, args.seeds, args.admission)


def _curve(args: argparse.Namespace) -> Curve:
    known = CURVES.get(args.device)
    if known is None:
        raise InvalidSettings(f"there is no device {args.device!r}; there are {', '.join(CURVES)}")
    most = args.max_batch_rows or known.max_batch_rows
    buckets = known.buckets if args.batch_buckets is None else tuple(sorted(args.batch_buckets))
    below = tuple(size for size in buckets if size < most)
    return Curve(
        known.batch_ms if args.batch_ms is None else args.batch_ms,
        known.row_ms if args.row_ms is None else args.row_ms,
        most,
        (*below, most) if buckets else (),
    )


def _notes(args: argparse.Namespace, curve: Curve) -> Iterator[str]:
    yield (
        f"{args.device}: {curve.batch_ms:.3g} ms a batch and {curve.row_ms:.3g} ms a row, "
        f"at most {curve.max_batch_rows} rows a batch"
    )
    yield f"load 1 is the ceiling, {curve.peak_rows_per_s:,.0f} rows/s"
    yield f"target {args.target_ms:g} ms; in time, refused and busy are shares of 1"
