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
from stoker.errors import InvalidSettings, OperatorError
from stoker.system.extensions import find_extension, require_extension
from stoker.system.extras import how_to_install
from stoker.system.resources import usable_cores

if TYPE_CHECKING:
    from tqdm import tqdm

    from stoker.profiling.profile import Confirmation, Measured
    from stoker.profiling.search import Estimate, SearchResult

SUMMARY: Final = "find the settings with which a model serves the most requests within a latency target"

_CONFIRMED: Final = 2
"""So many of the best settings are tried on a server, and the defaults if they are none of them."""
_MEASURING_PART: Final = 0.25
_AS_GOOD: Final = 0.95
"""The share of the largest confirmed load that counts as equally good: short runs cannot tell them apart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Example: stoker profile digits --target-ms 50 --output deployment.yaml\n"
        "         stoker serve --config deployment.yaml\n\n"
        "The command times batches of all sizes, tries settings in a simulation of the server's batching\n"
        "scheduler, and loads a server with the best. The figures hold for this machine and its device.\n"
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
        help="do not confirm the result with a real server",
    )
    outputs = parser.add_argument_group("output")
    outputs.add_argument("--output", type=Path, metavar="FILE", help="write a deployment file")
    outputs.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_json_argument(outputs)


def run(args: argparse.Namespace) -> int:
    """Measure, search, confirm, and print the expected figures."""
    from stoker.profiling.profile import check_output, deployment_of, find_settings, write_deployment
    from stoker.profiling.search import Load

    exit_at_sigterm()
    if args.output is not None:
        check_output(args.output, args.config, force=args.force)
    if args.confirm:
        _check_bench()
    until_s = time.monotonic() + args.seconds
    notes: list[str] = []
    measured = _measure(args, notes)
    with _bar("simulating", "") as bar:
        found = find_settings(
            measured, Load(args.target_ms, args.rows), lambda done, of: _show(bar, done, of)
        )
    confirmed: list[tuple[Estimate, Confirmation]] = []
    if args.confirm:
        confirmed = _confirm(args, measured, found, until_s)
    chosen = _best(found, confirmed)
    deployment = deployment_of(args.model, args.config, args.device, args.target_ms, chosen.candidate)
    report = _report(args, measured, found, confirmed, chosen)
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


def _check_bench() -> None:
    try:
        missing = "" if find_extension("bench") is not None else "stoker_bench"
    except ModuleNotFoundError as error:
        missing = str(error.name)
    if missing:
        raise OperatorError(
            f"confirming by real load needs packages that are not installed ({missing}); "
            f"{how_to_install('bench')}, or give --no-confirm"
        )


def _confirm(
    args: argparse.Namespace, measured: Measured, found: SearchResult, until_s: float
) -> list[tuple[Estimate, Confirmation]]:
    """Load a server with each of the best settings, as far as the time allows; with the best in any case."""
    from stoker.profiling.profile import LoadTest, deployment_of, only_model
    from stoker.settings.workspace import Workspace

    confirm = require_extension("bench").confirm
    todo = list(dict.fromkeys([*found.ranked[:_CONFIRMED], found.default]))
    done: list[tuple[Estimate, Confirmation]] = []
    request = measured.facts["request"]
    headers = request["headers"]
    with tempfile.TemporaryDirectory(prefix="stoker-profile-") as folder, _bar("confirming", "") as bar:
        of_models = Workspace.find(args.workspace).root
        for number, expected in enumerate(todo):
            left_s = until_s - time.monotonic()
            if done and left_s <= 0:
                break
            bar.set_postfix_str(_settings(expected.candidate.settings()))
            content = deployment_of(args.model, args.config, args.device, args.target_ms, expected.candidate)
            alone = only_model(content, args.model, args.config)
            registered = "registered" in alone["models"][0]
            question = LoadTest(
                request["path"], headers, measured.body, args.rows, args.target_ms, expected.load_rows_per_s
            )
            place = Path(folder, str(number))
            workspace = of_models if registered else Path(folder, "workspace")
            share_s = left_s / (len(todo) - number)
            done.append((expected, confirm(alone, question, share_s, place, workspace)))
            _show(bar, number + 1, len(todo))
    return done


def _best(found: SearchResult, confirmed: list[tuple[Estimate, Confirmation]]) -> Estimate:
    """The choice: the first in the order of the search among those that bear about the most."""
    most = max((real.load_rows_per_s for _, real in confirmed), default=0.0)
    good = [expected for expected, real in confirmed if real.load_rows_per_s >= _AS_GOOD * most]
    return next((expected for expected in found.ranked if expected in good), found.ranked[0])


def _report(
    args: argparse.Namespace,
    measured: Measured,
    found: SearchResult,
    confirmed: list[tuple[Estimate, Confirmation]],
    chosen: Estimate,
) -> dict[str, Any]:
    real = dict(confirmed)

    def with_confirmation(expected: Estimate) -> dict[str, Any]:
        confirmation = real.get(expected)
        return expected.to_json() | {
            "confirmed": None
            if confirmation is None
            else {
                "load_rows_per_s": round(confirmation.load_rows_per_s, 3),
                "p50_ms": round(confirmation.p50_ms, 3),
                "p99_ms": round(confirmation.p99_ms, 3),
                "generator_busy": confirmation.generator_busy,
            }
        }

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
        "choice": with_confirmation(chosen),
        "default": with_confirmation(found.default),
        "others": [with_confirmation(expected) for expected in others],
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
    rows: list[tuple[str, ...]] = [
        (
            "",
            "settings",
            "peak rows/s",
            "rows/s with 99 % in time",
            "p50 ms at half",
            "p99 ms",
            "on a server",
            "p50",
            "p99",
        )
    ]
    listed = [("chosen", report["choice"])]
    if report["default"] != report["choice"]:
        listed.append(("default", report["default"]))
    for name, figures in (*listed, *(("", other) for other in report["others"] if other["confirmed"])):
        rows.append((name, _settings(figures["settings"]), *_figures(figures)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        left = (cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True))
        right = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
        yield "  ".join((*left, *right)).rstrip()
    if any((figures["confirmed"] or {}).get("generator_busy") for _, figures in listed):
        yield "The load generator had no core left, so a server with callers elsewhere may bear more."


def _figures(figures: dict[str, Any]) -> Iterator[str]:
    for name in ("peak_rows_per_s", "load_rows_per_s"):
        yield f"{figures[name]:.0f}" if figures[name] >= 10 else f"{figures[name]:.2f}"
    yield from (f"{figures[name]:.1f}" for name in ("p50_ms", "p99_ms"))
    real = figures["confirmed"]
    if real is None:
        yield from ("", "", "")
        return
    yield f"{real['load_rows_per_s']:.0f}"
    yield from (f"{real[name]:.1f}" for name in ("p50_ms", "p99_ms"))


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
def _bar(what: str, unit: str) -> Iterator[tqdm[Any]]:
    from tqdm import tqdm

    with tqdm(desc=what, unit=unit, disable=None, file=sys.stderr, leave=False) as bar:
        yield bar


def _show(bar: tqdm[Any], done: int, of: int) -> None:
    bar.total = of
    bar.update(done - bar.n)
