"""`stoker simulate`: what a model with a target does under load, by the server's own planner and a virtual clock."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.values import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stoker.simulation.devices import Curve
    from stoker.simulation.world import Outcome

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY: Final = "simulate how many requests are answered within a target, without a device"

_PATTERNS: Final = ("poisson", "gamma", "sine", "bursts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Loads are parts of what the device does in full batches. Nothing is loaded or called: the planner of the "
        "server runs under a virtual clock."
    )
    parser.add_argument("--suite", action="store_true", help="the open workloads, by Stoker and by others")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--seeds", type=_numbers(int, 0, 1 << 31), default=[101, 102, 103], help="of chance (101,102,103)"
    )
    device = parser.add_argument_group("the device")
    device.add_argument(
        "--device", default="resnet50-a100", help="a known curve (resnet50-a100); its numbers can be changed:"
    )
    device.add_argument("--batch-ms", type=_number(float, 0, 1e6), help="time of a batch, whatever its rows")
    device.add_argument("--row-ms", type=_number(float, 1e-6, 1e6), help="time of each row in it")
    device.add_argument("--max-batch-rows", type=_number(int, 1, 65536), help="most rows in a batch")
    device.add_argument(
        "--batch-buckets", type=_numbers(int, 1, 65536), help="sizes that batches are filled up to"
    )
    load = parser.add_argument_group("the requests")
    load.add_argument(
        "--load",
        type=_numbers(float, 0.001, 100),
        default=[0.3, 0.8, 1.0, 2.0, 4.0],
        help="one or several (0.3,0.8,1,2,4)",
    )
    load.add_argument(
        "--target-ms",
        type=_number(float, 0.01, 1e6),
        default=50.0,
        help="how long an answer is worth something (50)",
    )
    load.add_argument("--pattern", choices=_PATTERNS, default="poisson", help="when requests come (poisson)")
    load.add_argument(
        "--cv",
        type=_number(float, 0.1, 20),
        default=4.0,
        help="coefficient of variation of gamma's pauses (4)",
    )
    load.add_argument(
        "--most-rows",
        type=_number(int, 1, 4096),
        default=1,
        help="most rows of a request, Pareto distributed (1)",
    )
    load.add_argument("--seconds", type=_number(float, 0.01, 1e5), default=4.0, help="how long they come (4)")
    policy = parser.add_argument_group("the settings that are tried")
    policy.add_argument(
        "--late", choices=("answer", "refuse"), default="answer", help="as the setting of a model"
    )
    policy.add_argument("--hold", type=_number(float, 0, 1), default=0.0, help="as the setting of a model")


def run(args: argparse.Namespace) -> int:
    """Simulate, and print a table.

    Raises:
        InvalidSettings: There is no such device.
    """
    rows = list(_suite(args.seeds)) if args.suite else list(_loads(args))
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _table(rows)))
    return 0


def _number(kind: Any, least: float, most: float) -> Any:
    """A reader of a number for argparse, which tells what is wrong with it."""
    read = number_of(kind, least, most)

    def number(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return number


def _numbers(kind: Any, least: float, most: float) -> Any:
    one = _number(kind, least, most)
    return lambda text: [one(part) for part in text.split(",")]


def _suite(seeds: Sequence[int]) -> Iterator[dict[str, object]]:
    from stoker.simulation.suite import SCHEDULERS, SUITE, simulate

    for name, workload in SUITE.items():
        row: dict[str, object] = {"workload": f"{name} {workload.text}"}
        for scheduler in SCHEDULERS:
            outcomes = simulate(workload, scheduler, seeds)
            row[scheduler] = None if outcomes is None else _mean(outcomes, None)
        # Of the models beside the first, the worst.
        stokers = simulate(workload, "Stoker", seeds) if workload.others else None
        row["others"] = (
            None if stokers is None else min(_mean(stokers, of) for of in range(1, workload.models))
        )
        yield row


def _mean(outcomes: Sequence[Outcome], model: int | None) -> float:
    return round(sum(outcome.in_time(model) for outcome in outcomes) / len(outcomes), 3)


def _loads(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from stoker.device.planner import BatchPolicy
    from stoker.simulation.arrivals import Stream
    from stoker.simulation.suite import simulate_load

    curve = _curve(args)
    policy = BatchPolicy(curve.max_batch_rows, buckets=curve.buckets, late=args.late, hold=args.hold)
    for load in args.load:
        stream = Stream(
            load * curve.peak_rows_per_s,
            args.target_ms,
            pattern=args.pattern,
            cv=args.cv,
            most_rows=args.most_rows,
        )
        outcomes = [simulate_load(curve, policy, stream, args.seconds, seed) for seed in args.seeds]
        yield {"load": load} | _facts(outcomes)


def _curve(args: argparse.Namespace) -> Curve:
    from stoker.simulation.devices import CURVES, Curve

    known = CURVES.get(args.device)
    if known is None:
        raise InvalidSettings(f"there is no curve {args.device!r}; there are {', '.join(CURVES)}")
    most = args.max_batch_rows or known.max_batch_rows
    buckets = known.buckets if args.batch_buckets is None else tuple(sorted(args.batch_buckets))
    below = tuple(size for size in buckets if size < most)
    return Curve(
        known.batch_ms if args.batch_ms is None else args.batch_ms,
        known.row_ms if args.row_ms is None else args.row_ms,
        most,
        (*below, most) if buckets else (),
    )


def _facts(outcomes: Sequence[Outcome]) -> dict[str, object]:
    count = len(outcomes)
    asked = sum(int(outcome.requests.rows.sum()) for outcome in outcomes)
    batches = sum(outcome.batches for outcome in outcomes)
    answered = sum(outcome.answered_rows for outcome in outcomes)
    return {
        "rows": asked,
        "in time": round(sum(outcome.in_time() for outcome in outcomes) / count, 3),
        "p50 ms": round(sum(outcome.latency_ms(0.5) for outcome in outcomes) / count, 2),
        "p99 ms": round(sum(outcome.latency_ms(0.99) for outcome in outcomes) / count, 2),
        "rows a batch": round(answered / max(1, batches), 1),
        "busy": round(sum(sum(outcome.busy_ns) / outcome.end_ns for outcome in outcomes) / count, 3),
    }


def _table(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    names = list(rows[0])
    texts = [["" if row[name] is None else str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for cells in (names, *texts):
        first, *others = zip(cells, widths, strict=True)
        yield "  ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)))
