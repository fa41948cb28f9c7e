"""`stoker simulate`: a model with a latency target under load, by the server's scheduler and a virtual clock."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.commands.terminal import number_option
from stoker.device.batching import BatchPolicy
from stoker.errors import InvalidSettings
from stoker.settings.choices import Admission
from stoker.simulation.stream import StreamDevice
from stoker.simulation.workload import Curve, Requests
from stoker.simulation.world import Outcome

# What has become of simulated requests, as lines of a table.


def mean(parts: Iterable[float]) -> float | None:
    """The mean of numbers, to three digits; None of none."""
    known = list(parts)
    return round(sum(known) / len(known), 3) if known else None


def rejected_rows(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Which part of the rows was refused when it came."""
    return {"not taken": mean(one.refused_rows / max(1, int(one.requests.rows.sum())) for one in outcomes)}


def facts_of(outcomes: Sequence[Outcome], model: int | None = None) -> dict[str, object]:
    """A line: the mean of several simulations.

    Args:
        model: The model; None for all.
    """
    count = len(outcomes)
    if model is not None:
        rows = [outcome.requests.rows[outcome.requests.model == model].sum() for outcome in outcomes]
        return {
            "rows": int(sum(rows)),
            "in time": round(sum(outcome.in_time(model) for outcome in outcomes) / count, 3),
            "p50 ms": None,
            "p99 ms": None,
            "rows a batch": None,
            "busy": round(sum(outcome.busy_ns[model] / outcome.end_ns for outcome in outcomes) / count, 3),
        }
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


def table(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """The lines of a table, with a head."""
    names = list(rows[0])
    texts = [["" if row[name] is None else str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for cells in (names, *texts):
        first, *others = zip(cells, widths, strict=True)
        yield "  ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)))


_PATTERNS: Final = ("poisson", "gamma", "sine", "bursts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "A load of 1 is what the device does in full batches. No model is loaded: the server's batching scheduler "
        "runs under a virtual clock."
    )
    parser.add_argument("--suite", action="store_true", help="the open workloads, by Stoker and by others")
    parser.add_argument(
        "--neighbours",
        choices=("callers", "tiers"),
        help="what five callers of 0.1 notice of one more of each load, or a high tier of 0.3 of a low one",
    )
    parser.add_argument(
        "--bounds",
        action="store_true",
        help="beside loads and the suite what no scheduler can exceed; takes longer",
    )
    parser.add_argument(
        "--memory-mb",
        type=number_option(int, 200, 1_000_000_000),
        metavar="NUMBER",
        help="instead of loads: which of --models of 10 to 200 MB stay in a memory of this size, by several rules",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the loads too, as PNG or SVG")
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
        help="a known device (default: resnet50-a100); the next options change its numbers. h200-resnet50 has copies "
        "beside the computation, as measured",
    )
    device.add_argument("--batch-ms", type=number_option(float, 0, 1e6), help="fixed time of a batch")
    device.add_argument(
        "--row-ms", type=number_option(float, 1e-6, 1e6), help="time of a batch for each of its rows"
    )
    device.add_argument("--max-batch-rows", type=number_option(int, 1, 65536), help="maximum rows of a batch")
    device.add_argument(
        "--batch-buckets", type=_numbers(int, 1, 65536), help="sizes that batches are padded to"
    )
    device.add_argument(
        "--from-metrics",
        metavar="URI",
        help="use the batch times of a running server, from its /metrics",
    )
    device.add_argument("--model", metavar="NAME", help="with --from-metrics: the model of that server")
    _add_fleet(parser.add_argument_group("several servers"))
    load = parser.add_argument_group("requests")
    load.add_argument(
        "--replay", type=Path, metavar="FILE", help="requests from a CSV file: time (seconds), model, rows"
    )
    load.add_argument(
        "--caller-rows-per-s",
        type=number_option(float, 0.001, 1e12),
        metavar="NUMBER",
        help="with --replay: rows that each caller may send per second; more are refused",
    )
    load.add_argument(
        "--caller-burst-s",
        type=number_option(float, 0.001, 3600),
        default=2.0,
        metavar="NUMBER",
        help="with --caller-rows-per-s: seconds of that rate that may come at once (default: 2)",
    )
    load.add_argument(
        "--load",
        type=_numbers(float, 0.001, 100),
        default=[0.3, 0.8, 1.0, 2.0, 4.0],
        help="loads to simulate, 1 is the capacity in full batches (default: 0.3,0.8,1,2,4)",
    )
    load.add_argument(
        "--callers",
        type=_numbers(int, 1, 1_000_000),
        help="instead of loads: callers that each send a row once the last one is answered; with h200-resnet50",
    )
    load.add_argument(
        "--target-ms",
        type=number_option(float, 0.01, 1e6),
        default=50.0,
        help="latency target in ms (default: 50)",
    )
    load.add_argument(
        "--pattern", choices=_PATTERNS, default="poisson", help="arrival pattern (default: poisson)"
    )
    load.add_argument(
        "--cv",
        type=number_option(float, 0.1, 20),
        default=4.0,
        help="coefficient of variation of the pauses of gamma (default: 4)",
    )
    load.add_argument(
        "--most-rows",
        type=number_option(int, 1, 4096),
        default=1,
        help="maximum rows of a request, Pareto distributed (default: 1)",
    )
    load.add_argument(
        "--seconds",
        type=number_option(float, 0.01, 1e5),
        default=4.0,
        help="duration of the arrivals (default: 4)",
    )
    policy = parser.add_argument_group("settings of the model")
    policy.add_argument(
        "--late", choices=("answer", "refuse"), default="answer", help="as the setting of a model"
    )
    policy.add_argument(
        "--hold", type=number_option(float, 0, 1), default=0.0, help="as the setting of a model"
    )
    policy.add_argument(
        "--admission",
        choices=("target", "rows"),
        help="as the setting of a model: target refuses requests on arrival that would be late, rows admits all "
        "(default: target; with --gpus rows)",
    )


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpus", type=number_option(int, 1, 10_000), help="number of servers with a GPU each")
    group.add_argument(
        "--routing",
        choices=("random", "rows", "end"),
        default="end",
        help="choose a server at random, by the fewest waiting rows, or by the earliest expected end (default: end)",
    )
    group.add_argument(
        "--choices",
        type=number_option(int, 1, 10_000),
        default=3,
        help="number of random servers to choose from (default: 3)",
    )
    group.add_argument(
        "--state-ms",
        type=number_option(float, 0, 1e5),
        default=0.0,
        help="age of the known state of the servers (default: 0)",
    )
    group.add_argument(
        "--routers",
        type=number_option(int, 1, 10_000),
        default=16,
        help="number of routers; each knows its own requests since that state (default: 16)",
    )
    group.add_argument(
        "--models",
        type=number_option(int, 1, 10_000),
        default=1,
        help="number of models, equally busy without --memory-mb (default: 1)",
    )
    group.add_argument(
        "--copies",
        type=number_option(int, 0, 10_000),
        default=0,
        help="servers of each model; 0 for all (default: 0)",
    )
    group.add_argument(
        "--lose",
        type=number_option(int, 0, 10_000),
        default=0,
        help="servers lost half-way (default: 0)",
    )
    group.add_argument(
        "--least-gpus",
        type=number_option(int, 1, 10_000),
        help="initial number of servers; further ones come and go with the load",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate, and print a table."""
    rows = list(_chosen(args))
    notes = list(_notes(args))
    if args.plot is not None:
        from stoker_bench.commands.simulate import draw

        draw(args.plot, rows)
    if args.json:
        about = (
            {}
            if args.suite or args.memory_mb
            else {"device": _device_name(args), "target_ms": args.target_ms}
        )
        content = [about | {_json_key(name): value for name, value in row.items()} for row in rows]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in (*notes, *table(rows))))
    return 0


def _json_key(column: str) -> str:
    """Return the key of a column: `rows/s` is `rows_per_s`, and `p99 ms` is `p99_ms`."""
    return re.sub(r"\W+", "_", re.sub("/| a ", "_per_", column.lower().replace("'", "")))


def _device_name(args: argparse.Namespace) -> str:
    from stoker.simulation.workload import FORMER_CURVES

    if args.from_metrics is not None:
        return f"{args.model or 'the model'} at {args.from_metrics}"
    return FORMER_CURVES.get(args.device, str(args.device))


def _numbers(kind: Any, least: float, most: float) -> Any:
    one = number_option(kind, least, most)
    return lambda text: [one(part) for part in text.split(",")]


def _suite(seeds: Sequence[int], admission: Admission, *, bounds: bool) -> Iterator[dict[str, object]]:
    from stoker.simulation.workload import CURVES
    from stoker_bench.laboratory.suite import SCHEDULERS, SUITE, simulate

    for name, workload in SUITE.items():
        row: dict[str, object] = {"workload": f"{name} {workload.text}"}
        for scheduler in SCHEDULERS:
            outcomes = simulate(workload, scheduler, seeds, admission=admission)
            row[scheduler] = None if outcomes is None else mean(outcome.in_time() for outcome in outcomes)
            beside = [workload.in_time_beside(outcome) for outcome in outcomes or ()]
            # Of those beside the first, the worst.
            row["others"] = mean(part for part in beside if part is not None)
            if admission == "target" and scheduler == "Stoker":
                row |= rejected_rows(outcomes or ())
        if bounds:
            row |= _bounds([workload.draw(seed) for seed in seeds], CURVES[workload.curve])
        yield row


def _bounds(drawn: Sequence[Requests], curve: Curve) -> dict[str, object]:
    from stoker_bench.laboratory.suite import exact, fluid, has_exact

    return {
        "fluid": mean(fluid(requests, curve) for requests in drawn),
        "exact": mean(exact(requests, curve) for requests in drawn if has_exact(requests)),
    }


def _chosen(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    if args.memory_mb is not None:
        return _residency(args)
    if args.caller_rows_per_s is not None and args.replay is None:
        raise InvalidSettings("callers are told apart in recorded requests only: give them with --replay")
    if _is_stream(args):
        return _streams(args)
    if args.callers is not None:
        raise InvalidSettings(f"--callers needs a device with copies: {', '.join(_stream_devices())}")
    if args.suite:
        return _suite(args.seeds, _admission(args), bounds=args.bounds)
    if args.replay is not None:
        return _replay(args)
    if args.neighbours is not None:
        return _neighbours(args)
    return _loads(args) if args.gpus is None else _fleet(args)


def _residency(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from stoker.simulation.residency import RULES, TRACES, draw_sizes, simulate_residency

    given = {"suite", "replay", "neighbours", "gpus", "callers", "from_metrics", "batch_ms", "row_ms"}
    if wrong := [name for name in sorted(given) if getattr(args, name)]:
        options = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise InvalidSettings(f"--memory-mb takes --models, --seeds and --json: leave {options} out")
    for name, draw_trace in TRACES.items():
        waited_ms: dict[str, list[float]] = {rule: [] for rule in RULES}
        hits, requests = [], 0
        for seed in args.seeds:
            rng = np.random.default_rng(seed)
            sizes = draw_sizes(args.models, rng)
            trace = draw_trace(args.models, rng)
            requests += len(trace.at_s)
            for rule, make_rule in RULES.items():
                outcome = simulate_residency(trace, sizes, args.memory_mb * 1_000_000, make_rule(sizes))
                waited_ms[rule].append(outcome.waited_s / outcome.requests * 1e3)
            hits.append(outcome.hits / outcome.requests)
        yield {
            "trace": name,
            "requests": requests,
            **{rule: round(sum(each) / len(each), 1) for rule, each in waited_ms.items()},
            "hits": mean(hits),
        }


def _stream_devices() -> Mapping[str, StreamDevice]:
    from stoker.simulation.stream import STREAM_DEVICES

    return STREAM_DEVICES


def _is_stream(args: argparse.Namespace) -> bool:
    return args.from_metrics is None and not args.suite and args.device in _stream_devices()


def _notes(args: argparse.Namespace) -> Iterator[str]:
    """Yield what is simulated, and what the figures of a table mean."""
    if args.memory_mb is not None:
        yield f"{args.models} models in {args.memory_mb} MB: ms of loading that a request waits for, on average"
        yield "a load takes 150 ms and 1 ms for each 0.15 MB; hits are Stoker's, a share of 1"
        return
    shares = "in time, not taken, busy and the like are shares of 1; times are in ms"
    if args.suite:
        yield f"each workload has its own device and target; {shares}"
        return
    if not _is_stream(args):
        curve = _curve(args)
        yield (
            f"{_device_name(args)}: {curve.batch_ms:.3g} ms a batch and {curve.row_ms:.3g} ms a row, "
            f"at most {curve.max_batch_rows} rows a batch"
        )
        servers = "" if args.gpus is None else f" of each of {args.gpus} servers"
        yield f"load 1 is the ceiling{servers}, {curve.peak_rows_per_s:,.0f} rows/s"
        yield f"target {args.target_ms:g} ms; {shares}"
        return
    device = _stream_devices()[args.device]
    yield f"{args.device}: {device.text}"
    yield f"load 1 is the ceiling, {device.peak_rows_per_s:,.0f} rows/s: the runtime alone, at its best batch size"
    if args.callers is not None:
        yield f"times to answers include {device.transport_ms:g} ms of transport"
    else:
        yield f"target {args.target_ms:g} ms; {shares}"
    yield f"batch_buckets {','.join(map(str, _stream_policy(args, device).buckets))}"


def _stream_policy(args: argparse.Namespace, device: StreamDevice) -> BatchPolicy:
    from stoker.device.batching import BatchPolicy

    buckets = args.batch_buckets or device.buckets(args.target_ms, args.max_batch_rows)
    buckets = tuple(sorted(size for size in buckets if size <= (args.max_batch_rows or size)))
    return BatchPolicy(buckets[-1], buckets=buckets, late=args.late, hold=args.hold)


def _streams(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Loads of a device with copies, or callers in a closed loop."""
    from stoker.simulation.workload import Stream
    from stoker_bench.laboratory.streams import facts_of_arrivals, facts_of_callers

    given = {"replay", "neighbours", "gpus", "batch_ms", "row_ms"}
    wrong = [name for name in sorted(given) if getattr(args, name) is not None]
    if wrong or args.bounds or args.admission == "target":
        raise InvalidSettings(
            f"{args.device} takes --load or --callers of one model, and all requests: leave "
            f"{', '.join('--' + name.replace('_', '-') for name in wrong) or '--bounds and --admission target'} out"
        )
    device = _stream_devices()[args.device]
    policy = _stream_policy(args, device)
    if args.callers is not None:
        return (
            facts_of_callers(device, policy, callers, args.seconds, args.seeds) for callers in args.callers
        )
    streams = (
        Stream(
            load * device.peak_rows_per_s,
            args.target_ms,
            pattern=args.pattern,
            cv=args.cv,
            most_rows=args.most_rows,
        )
        for load in args.load
    )
    return (facts_of_arrivals(device, policy, stream, args.seconds, args.seeds) for stream in streams)


def _admission(args: argparse.Namespace) -> Admission:
    if args.gpus is None:
        return args.admission or "target"
    if args.admission == "target":
        raise InvalidSettings("the servers of a fleet take all requests: leave --admission target out")
    return "rows"


def _neighbours(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from stoker_bench.laboratory.suite import beside

    curve = _curve(args)
    loads = (0.0, *args.load)
    return beside(
        args.neighbours,
        curve,
        _policy(args, curve),
        args.target_ms,
        loads,
        args.seconds,
        args.seeds,
        _admission(args),
    )


def _policy(args: argparse.Namespace, curve: Curve) -> BatchPolicy:
    from stoker.device.batching import BatchPolicy

    return BatchPolicy(curve.max_batch_rows, buckets=curve.buckets, late=args.late, hold=args.hold)


def _replay(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from stoker_bench.laboratory.replay import read_requests
    from stoker_bench.laboratory.suite import simulate_requests

    curve = _curve(args)
    requests, models = read_requests(args.replay, args.target_ms)
    facts: dict[str, object] = {"model": "all"}
    if args.caller_rows_per_s is not None:
        from stoker_bench.laboratory.suite import let_in

        sent = int(requests.rows.sum())
        requests = let_in(requests, args.caller_rows_per_s, args.caller_burst_s)
        # Of all models together: a limit is not a model's.
        facts["refused"] = sent - int(requests.rows.sum())
    admission = _admission(args)
    outcomes = [
        simulate_requests(curve, _policy(args, curve), requests, len(models), seed, admission=admission)
        for seed in args.seeds
    ]
    if admission == "target":
        facts |= rejected_rows(outcomes)
    yield facts | facts_of(outcomes)
    for number, model in enumerate(models if len(models) > 1 else ()):
        yield dict.fromkeys(facts) | {"model": model} | facts_of(outcomes, number)


def _fleet(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from stoker.simulation.workload import Stream, joined
    from stoker_bench.laboratory.fleet import Fleet, run_fleet

    if args.hold or args.copies > args.gpus or args.lose >= args.gpus:
        raise InvalidSettings(
            "a fleet has no hold, and as many gpus as a model has copies, and more than it loses; change those"
        )
    curve = _curve(args)
    _admission(args)
    fleet = Fleet(
        curve,
        args.gpus,
        _policy(args, curve),
        args.routing,
        args.choices,
        args.state_ms,
        args.routers,
        args.models,
        args.copies,
        args.lose,
        args.least_gpus,
    )
    for load in args.load:
        rate = load * args.gpus * curve.peak_rows_per_s / args.models
        ends = []
        for seed in args.seeds:
            chance = np.random.default_rng(seed)
            streams = [
                Stream(rate, args.target_ms, model, args.pattern, args.cv, args.most_rows)
                for model in range(args.models)
            ]
            requests = joined([stream.draw(args.seconds, chance) for stream in streams])
            ends.append(run_fleet(fleet, requests, seed))
        seconds = sum(end.outcome.end_ns for end in ends) / 1e9
        facts = facts_of([end.outcome for end in ends])
        facts["busy"] = round(
            sum(end.outcome.busy_ns[0] for end in ends) / 1e9 / sum(end.gpu_s for end in ends), 3
        )
        yield (
            {"load": load}
            | facts
            | {
                "gpus": round(sum(end.gpu_s for end in ends) / seconds, 1),
                "rerouted": sum(end.rerouted_rows for end in ends),
            }
        )


def _loads(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from stoker.simulation.workload import Stream
    from stoker_bench.laboratory.suite import simulate_load

    curve = _curve(args)
    policy, admission = _policy(args, curve), _admission(args)
    for load in args.load:
        stream = Stream(
            load * curve.peak_rows_per_s,
            args.target_ms,
            pattern=args.pattern,
            cv=args.cv,
            most_rows=args.most_rows,
        )
        outcomes = [
            simulate_load(curve, policy, stream, args.seconds, seed, admission=admission)
            for seed in args.seeds
        ]
        facts = {"load": load} | facts_of(outcomes)
        if admission == "target":
            facts |= rejected_rows(outcomes)
        yield facts | _bounds([outcome.requests for outcome in outcomes], curve) if args.bounds else facts


def _curve(args: argparse.Namespace) -> Curve:
    from stoker.simulation.workload import CURVES, FORMER_CURVES, Curve

    if args.from_metrics is not None:
        from stoker_bench.laboratory.replay import read_curve

        return read_curve(args.from_metrics, args.model)
    known = CURVES.get(FORMER_CURVES.get(args.device, args.device))
    if known is None:
        known_names = ", ".join((*CURVES, *_stream_devices()))
        raise InvalidSettings(f"there is no device {args.device!r}; there are {known_names}")
    most = args.max_batch_rows or known.max_batch_rows
    buckets = known.buckets if args.batch_buckets is None else tuple(sorted(args.batch_buckets))
    below = tuple(size for size in buckets if size < most)
    return Curve(
        known.batch_ms if args.batch_ms is None else args.batch_ms,
        known.row_ms if args.row_ms is None else args.row_ms,
        most,
        (*below, most) if buckets else (),
    )


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot a table of loads.

    Args:
        path: The file; its suffix determines the format.

    Raises:
        InvalidSettings: The table has no loads, the file cannot be written, or a package is missing.
    """
    if not rows or "load" not in rows[0]:
        raise InvalidSettings("only loads can be drawn: leave --plot out with --suite and --replay")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidSettings(
            "--plot needs matplotlib, which comes with the extra training; install that, or leave --plot out"
        ) from None
    loads = [row["load"] for row in rows]
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    goodput, latency, use = figure.subplots(1, 3)
    goodput.plot(loads, [row["load"] * row["in time"] for row in rows], marker="o")
    goodput.plot(loads, [min(1.0, load) for load in loads], linestyle=":", color="grey")
    goodput.set_title("in time, of what the device does in full batches")
    for name in ("p50 ms", "p99 ms"):
        latency.plot(loads, [row[name] for row in rows], marker="o", label=name)
    latency.legend()
    latency.set_title("time to answers")
    use.plot(loads, [row["busy"] for row in rows], marker="o")
    use.set_title("part of the time in which it computes")
    for axes in (goodput, latency, use):
        axes.set_xlabel("load")
        axes.set_ylim(bottom=0)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{path} cannot be written: {error}") from error
