"""`stoker profile`: find the settings with which a model answers the most requests within a target."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.terminal import (
    add_json_argument,
    add_workspace_argument,
    exit_at_sigterm,
    number_option,
    print_json,
)
from stoker.errors import InvalidSettings
from stoker.system.extensions import require_extension
from stoker.system.resources import usable_cores
from stoker.system.wording import format_count

if TYPE_CHECKING:
    from tqdm import tqdm

    from stoker.profiling.candidates import Candidate
    from stoker.profiling.load_tests import Confirmation, LoadTest, RequestCost
    from stoker.profiling.profile import Measured
    from stoker.profiling.search import Estimate, SearchResult


_CONFIRMED: Final = 2
"""So many of the best settings are tried on a server, and the defaults."""
_LEAST_CONFIRMING_S: Final = 12.0
"""A server that has less time is not tried, except for the first one."""
_CONFIRMED_SHARE: Final = 0.8
"""The share of the expected load that a server has to sustain."""
_NO_TARGET_MS: Final = 3_600_000
_MEASURING_PART: Final = 0.25
_AS_GOOD: Final = 0.95
"""The share of the largest confirmed load that counts as equally good: short runs cannot tell them apart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Example: stoker profile digits --target-ms 50 --output deployment.yaml\n"
        "         stoker serve --config deployment.yaml\n\n"
        "The command times batches of all sizes and the frontends' part of a request, tries settings in a\n"
        "simulation of the server's batching scheduler, and loads a server with the best. If that server does\n"
        "not sustain the expected load, the output says so. The figures hold for this machine and its device.\n"
        "Exit codes: 0 done, 2 an option is wrong or the target cannot be met, 3 the model cannot be loaded."
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a path, or a registered model NAME[:VERSION]; a name in --config"
    )
    parser.add_argument(
        "--target-ms",
        type=number_option(float, 0.1, 3_600_000),
        required=True,
        metavar="T",
        help="latency target in ms",
    )
    request = parser.add_argument_group("requests")
    request.add_argument(
        "--rows",
        type=number_option(int, 1, 65536),
        default=1,
        metavar="N",
        help="rows of a request (default: 1)",
    )
    request.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="an example request: JSON, .npy, .npz, an image, or the body for a script "
        "(default: sample_input.json beside the model, else generated from its signature)",
    )
    where = parser.add_argument_group("measurement")
    where.add_argument(
        "--device", default="auto", metavar="DEVICE", help="auto (as served), cpu, cuda:N, or a UUID"
    )
    where.add_argument(
        "--config", type=Path, metavar="FILE", help="deployment file with the settings of MODEL"
    )
    add_workspace_argument(where)
    where.add_argument(
        "--seconds",
        type=number_option(float, 1, 3600),
        default=60.0,
        metavar="S",
        help="approximate duration, without loading the model (default: 60)",
    )
    where.add_argument(
        "--no-confirm",
        dest="confirm",
        action="store_false",
        help="start no server: the result is that of the device alone, and not confirmed",
    )
    outputs = parser.add_argument_group("output")
    outputs.add_argument("--output", type=Path, metavar="FILE", help="write a deployment file")
    outputs.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_json_argument(outputs)


def run(args: argparse.Namespace) -> int:
    """Measure, search, confirm, and print the expected figures."""
    from stoker.profiling.deployment_files import check_output, make_deployment, write_deployment
    from stoker.profiling.profile import find_settings
    from stoker.profiling.search import Load

    exit_at_sigterm()
    if args.output is not None:
        check_output(args.output, args.config, force=args.force)
    bench = (
        require_extension("bench", "confirming by real load, which --no-confirm omits,")
        if args.confirm
        else None
    )
    until_s = time.monotonic() + args.seconds
    notes: list[str] = []
    measured = _measure(args, notes)
    cost: RequestCost | None = None
    confirmed: list[tuple[Estimate, Confirmation]] = []
    with tempfile.TemporaryDirectory(prefix="stoker-profile-") as folder:
        trials = _Trials(args, measured, Path(folder), bench)
        if args.confirm:
            cost = trials.measure_cost()
        with _bar("simulating", "") as bar:
            found = find_settings(
                measured, Load(args.target_ms, args.rows), cost, lambda done, of: _show(bar, done, of)
            )
        if args.confirm:
            confirmed = trials.confirm(found, until_s)
    chosen = _best(found, confirmed)
    deployment = make_deployment(args.model, args.config, args.device, args.target_ms, chosen.candidate)
    report = _report(args, measured, cost, found, confirmed, chosen)
    report |= {"deployment": deployment, "output": args.output and str(args.output), "notes": notes}
    lines = list(_lines(report))
    if args.output is not None:
        write_deployment(args.output, deployment, ["Written by stoker profile, which expects:", *lines])
    _print(args, report, lines)
    return 0


def _measure(args: argparse.Namespace, notes: list[str]) -> Measured:
    from stoker.profiling.measuring import Order
    from stoker.profiling.profile import measure_model

    settings: dict[str, Any] = {}
    if args.data is not None:
        if not args.data.is_file():
            raise InvalidSettings(
                f"--data {args.data} is not a file; give one with a request like those of callers"
            )
        settings["sample_input"] = str(args.data.absolute())
    order = Order(
        args.model,
        args.workspace and str(args.workspace),
        args.config and str(args.config),
        settings,
        args.device,
        args.target_ms,
        args.rows,
        args.seconds * _MEASURING_PART,
    )
    with _bar("measuring", "sizes") as bar:

        def say(message: dict[str, Any]) -> None:
            if "note" in message:
                notes.append(message["note"])
            elif "step" in message:
                bar.set_postfix_str(message["step"])
            else:
                bar.set_postfix_str(f"{message['rows']} rows: {message['ms']:g} ms")
                _show(bar, message["done"], message["of"])

        return measure_model(order, say)


class _Trials:
    """Servers with settings of a measured model, each in a folder of its own."""

    def __init__(self, args: argparse.Namespace, measured: Measured, folder: Path, bench: Any) -> None:
        self._args = args
        self._bench = bench
        self._measured = measured
        self._folder = folder
        self._started = 0

    def measure_cost(self) -> RequestCost:
        """Measure the cost of a request beside its batch, on a server with the default settings."""
        from stoker.profiling.profile import make_space

        with _bar("measuring a request", ""):
            content, question, *places = self._trial(make_space(self._measured).default, 0.0)
            # With many callers in a closed loop, the target would refuse requests, which cost less.
            content["models"][0]["target_ms"] = _NO_TARGET_MS
            cost: RequestCost = self._bench.measure_cost(content, question, *places)
            return cost

    def confirm(self, found: SearchResult, until_s: float) -> list[tuple[Estimate, Confirmation]]:
        """Load a server with each of the best settings, as far as the time allows; with the best in any case."""
        # Where the frontends are the limit, other batches gain nothing.
        best = found.ranked[: 1 if found.ranked[0].limit == "frontends" else _CONFIRMED]
        todo = list(dict.fromkeys([*best, found.default]))
        todo = todo[: max(1, int((until_s - time.monotonic()) / _LEAST_CONFIRMING_S))]
        done: list[tuple[Estimate, Confirmation]] = []
        with _bar("confirming", "") as bar:
            for number, expected in enumerate(todo):
                left_s = until_s - time.monotonic()
                if done and left_s < _LEAST_CONFIRMING_S:
                    break
                bar.set_postfix_str(_settings(expected.candidate.settings()))
                content, question, *places = self._trial(expected.candidate, expected.load_rows_per_s)
                done.append(
                    (expected, self._bench.confirm(content, question, left_s / (len(todo) - number), *places))
                )
                _show(bar, number + 1, len(todo))
        return done

    def _trial(self, candidate: Candidate, rows_per_s: float) -> tuple[dict[str, Any], LoadTest, Path, Path]:
        """The deployment of a server, its load, its folder and its workspace."""
        from stoker.profiling.deployment_files import make_deployment, select_model
        from stoker.profiling.load_tests import LoadTest
        from stoker.settings.workspace import Workspace

        args, request = self._args, self._measured.facts["request"]
        content = make_deployment(args.model, args.config, args.device, args.target_ms, candidate)
        alone = select_model(content, args.model, args.config)
        body = self._measured.body
        question = LoadTest(request["path"], request["headers"], body, args.rows, args.target_ms, rows_per_s)
        registered = "registered" in alone["models"][0]
        workspace = Workspace.find(args.workspace).root if registered else self._folder / "workspace"
        self._started += 1
        return alone, question, self._folder / str(self._started), workspace


def _best(found: SearchResult, confirmed: list[tuple[Estimate, Confirmation]]) -> Estimate:
    """The choice: the first in the order of the search among those that bear about the most."""
    most = max((real.load_rows_per_s for _, real in confirmed), default=0.0)
    good = [expected for expected, real in confirmed if real.load_rows_per_s >= _AS_GOOD * most]
    return next((expected for expected in found.ranked if expected in good), found.ranked[0])


def _report(
    args: argparse.Namespace,
    measured: Measured,
    cost: RequestCost | None,
    found: SearchResult,
    confirmed: list[tuple[Estimate, Confirmation]],
    chosen: Estimate,
) -> dict[str, Any]:
    real = dict(confirmed)

    def with_confirmation(expected: Estimate) -> dict[str, Any]:
        return expected.to_json() | {"confirmed": _confirmation(expected, real.get(expected))}

    others = [expected for expected in found.ranked if expected not in (chosen, found.default)]
    return {
        "model": measured.facts["reference"],
        "device": measured.facts["device"],
        "cores": usable_cores(),
        "memory_bytes": measured.facts["memory_bytes"],
        "target_ms": args.target_ms,
        "rows": args.rows,
        "request": measured.facts["request"]["note"],
        "buckets_because": measured.facts["buckets_because"],
        "curves": {name: curve.to_json() for name, curve in measured.curves.items()},
        "request_cost": None
        if cost is None
        else {
            "frontends": cost.frontends,
            "frontend_us": round(cost.frontend_us, 1),
            "lone_ms": round(cost.lone_ms, 3),
            "most_requests_per_s": round(cost.most_requests_per_s),
        },
        "choice": with_confirmation(chosen),
        "default": with_confirmation(found.default),
        "others": [with_confirmation(expected) for expected in others],
    }


def _confirmation(expected: Estimate, real: Confirmation | None) -> dict[str, Any] | None:
    if real is None:
        return None
    figures = {name: round(getattr(real, name), 3) for name in ("load_rows_per_s", "p50_ms", "p99_ms")}
    return figures | {
        "as_expected": 0 < _CONFIRMED_SHARE * expected.load_rows_per_s <= real.load_rows_per_s,
        "limit": real.limit,
        "busy": {name: round(share, 2) for name, share in real.busy.items()},
    }


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as lines of text."""
    yield (
        f"{report['model']} on {report['device']}, answers within {report['target_ms']:g} ms, {report['request']}"
    )
    curve = report["curves"]["auto"]
    yield "ms by rows: " + ", ".join(
        f"{rows}: {ms:.4g}" for rows, ms in zip(curve["rows"], curve["ms"], strict=True)
    )
    if report["buckets_because"]:
        yield f"sizes of batches by default, from these times: {report['buckets_because']}"
    if report["request_cost"]:
        yield _cost(report["request_cost"])
    rows: list[tuple[str, ...]] = [_HEADINGS]
    listed = [("chosen", report["choice"])]
    if report["default"] != report["choice"]:
        listed.append(("default", report["default"]))
    listed += [("", other) for other in report["others"] if other["confirmed"]]
    for name, figures in listed:
        rows.append((name, _settings(figures["settings"]), *_figures(figures)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        left = (cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True))
        right = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
        yield "  ".join((*left, *right)).rstrip()
    for name, figures in listed:
        yield from _finding(name or _settings(figures["settings"]), figures, report["cores"])


_HEADINGS: Final = (
    *("", "settings", "device alone", "rows/s with 99 % in time", "limit", "p50 ms at half", "p99 ms"),
    *("on a server", "p50", "p99"),
)


def _cost(cost: dict[str, Any]) -> str:
    frontends = format_count(cost["frontends"], "frontend")
    return (
        f"a request takes {cost['frontend_us']:.0f} µs of a frontend, so {frontends} can answer about "
        f"{cost['most_requests_per_s']:,} requests/s; a lone caller waits {cost['lone_ms']:.2g} ms"
    )


def _figures(figures: dict[str, Any]) -> Iterator[str]:
    yield from (_rounded(figures[name], 10) for name in ("peak_rows_per_s", "load_rows_per_s"))
    yield figures["limit"]
    yield from (_rounded(figures[name], 1, ".1f") for name in ("p50_ms", "p99_ms"))
    real = figures["confirmed"]
    if real is None:
        yield from ("not tried", "", "")
        return
    yield _rounded(real["load_rows_per_s"], 10) if real["load_rows_per_s"] else "none"
    yield from (_rounded(real[name], 1, ".1f") for name in ("p50_ms", "p99_ms"))


def _rounded(value: float, small: float, form: str = ".0f") -> str:
    return format(value, form if value >= small else ".2f")


def _finding(name: str, figures: dict[str, Any], cores: int) -> Iterator[str]:
    """A line if a server did not confirm the expected load."""
    real, expected = figures["confirmed"], figures["load_rows_per_s"]
    if real is None:
        if name == "chosen":
            yield (
                "chosen: not confirmed, because no server was started (--no-confirm): these are the figures of the "
                "device alone, and a server's frontends may allow less"
            )
        return
    if real["as_expected"]:
        return
    load = real["load_rows_per_s"]
    if load:
        found = (
            f"a server sustained {load:,.0f} rows/s, {100 * (1 - load / expected):.0f} % less than expected"
        )
    else:
        found = (
            f"a server had 99 % in time at no load that was tried (at the least p99 {real['p99_ms']:.3g} ms)"
        )
    busy = real["busy"]
    shares = ", ".join(f"{part} {100 * share:.0f} %" for part, share in busy.items())
    limit = _LIMITS[real["limit"]].format(cores=cores)
    yield f"{name}: could not be confirmed: {found}. The limit was {limit}{shares and f'; busy: {shares}'}"


_LIMITS: Final = {
    "generator": "the load generator, which sends no more beside the server on {cores} cores: callers elsewhere may "
    "get more answers",
    "frontends": "the frontends",
    "device": "the device",
    "cores": "the {cores} cores of this machine, shared by generator, server and other programs",
    "latency": "the time to the answer, though neither generator, frontends nor device was busy all the time",
}


def _settings(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value).replace(' ', '')}" for name, value in settings.items())


def _print(args: argparse.Namespace, report: dict[str, Any], lines: list[str]) -> None:
    if args.json:
        print_json(report)
        return
    sys.stdout.write("".join(f"{line}\n" for line in (*lines, *report["notes"])))
    if args.output is not None:
        sys.stdout.write(f"{args.output} is written: stoker serve --config {args.output}\n")


@contextlib.contextmanager
def _bar(title: str, unit: str) -> Iterator[tqdm[Any]]:
    from tqdm import tqdm

    with tqdm(desc=title, unit=unit, disable=None, file=sys.stderr, leave=False) as bar:
        yield bar


def _show(bar: tqdm[Any], done: int, of: int) -> None:
    bar.total = of
    bar.update(done - bar.n)
