"""`stoker models import`: try the ways to run a model, prove that they answer alike, and register those that do."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.commands.terminal import exit_at_sigterm, note, number_option, option_of, print_json, table
from stoker.settings.choices import WAY_NAMES, WayName
from stoker.settings.traffic import PARITY_TOLERANCE

if TYPE_CHECKING:
    from stoker.importing.imports import Report
    from stoker.models.repository import Repository


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="a .pt2 file, TorchScript, an ONNX file, a SavedModel, a .keras or .h5 file, a .mar archive, or "
        "a folder of sentence-transformers; or the address of one, such as s3://bucket/model.pt2",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the model (default: that of PATH)")
    parser.add_argument(
        "--sample",
        type=Path,
        metavar="FILE",
        help="a request that the model is known to answer: JSON, .npy or .npz (default: random inputs)",
    )
    parser.add_argument(
        "--try",
        dest="tried",
        type=option_of(_read_ways),
        metavar="WAY,…",
        help=f"ways to try besides PATH itself: {', '.join(WAY_NAMES)} (default: all that can be made of it)",
    )
    parser.add_argument(
        "--tolerance",
        type=number_option(float, 0, 1),
        default=PARITY_TOLERANCE,
        metavar="X",
        help="allowed difference from PATH in float32, relative to the largest number of an output "
        f"(default: {PARITY_TOLERANCE:g})",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="where to measure: auto (default), cpu, cuda:N, or a UUID",
    )
    parser.add_argument(
        "--max-batch-rows",
        type=number_option(int, 1, 65536),
        metavar="N",
        help="rows of the largest batch to measure (default: that of a server)",
    )
    parser.add_argument(
        "--load-timeout-s",
        type=number_option(float, 1, 86_400),
        metavar="S",
        help="how long each conversion or measurement may take, in seconds (default: STOKER_LOAD_TIMEOUT_S or 600)",
    )


def _read_ways(value: str) -> tuple[WayName, ...]:
    """Read the names of ways, with commas between them."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in WAY_NAMES]
    if unknown or not names:
        raise ValueError(f"must name some of {', '.join(WAY_NAMES)}, not {value!r}")
    return tuple(name for name in WAY_NAMES if name in names)


def run_import(args: argparse.Namespace, repository: Repository) -> int:
    """Import the model, and print the measurements of each way."""
    from stoker.importing.imports import ImportOrder, import_model, rows_of_table
    from stoker.models.way_choice import objection
    from stoker.settings.loading import load_settings
    from stoker.settings.names import checked_name, name_from_path

    exit_at_sigterm()
    settings = load_settings({}, os.environ, None, ())
    name = args.name or name_from_path(args.path.absolute(), is_folder=args.path.is_dir())
    order = ImportOrder(
        name=checked_name(name),
        path=args.path,
        sample=args.sample,
        tried=args.tried,
        device=args.device,
        tolerance=args.tolerance,
        max_batch_rows=args.max_batch_rows or settings.max_batch_rows,
        limit_s=args.load_timeout_s or settings.load_timeout_s,
    )
    with ExitStack() as cleanup:
        registered = import_model(order, repository, datetime.now(UTC), _progress(cleanup))
    ways = registered.ways
    assert ways is not None, "an imported version has them"
    if args.json:
        report: dict[str, Any] = {"model": registered.reference, **ways.to_json()}
        for result in report["results"]:
            one = next(each for each in ways.results if each.way == result["way"])
            result["objection"] = objection(one, batched=ways.batched)
        print_json(report)
        return 0
    sys.stdout.write(table(rows_of_table(ways)))
    sys.stdout.write(f"{registered.reference}\n")
    kept = ", ".join(ways.ways)
    note(f"registered with {kept}; stoker serve runs {ways.default}, execution: WAY another one")
    return 0


def _progress(cleanup: ExitStack) -> Report:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _step, _done, _of: None
    from tqdm import tqdm

    bar = cleanup.enter_context(
        tqdm(total=1, leave=False, bar_format="{desc} {bar} {n_fmt}/{total_fmt} {elapsed}")
    )

    def report(step: str, done: int, of: int) -> None:
        bar.total = of
        bar.set_description_str(step, refresh=False)
        bar.n = done
        bar.refresh()

    return report
