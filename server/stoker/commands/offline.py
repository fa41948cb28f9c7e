"""`stoker offline`: score files without a server, in shards that many processes can share."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from pathlib import Path
from typing import Any

from stoker.commands.terminal import add_workspace_argument, exit_at_sigterm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Files are .npy, .npz, .csv, .parquet and .jsonl. Answers that are there are not made again.\n"
        "Exit codes: 0 done, 1 the model fails on a row, 2 an option or file is wrong, 3 the model cannot be loaded."
    )
    parser.add_argument("model", metavar="MODEL", help="a path, or a registered model NAME[:VERSION]")
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        type=Path,
        metavar="FILE",
        help="files with rows, or folders of them",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the folder of the answers")
    parser.add_argument(
        "--shard",
        default="0/1",
        metavar="I/N",
        help="score the part I, from 0, of N parts: whole files, or a part of each where there are fewer",
    )
    parser.add_argument(
        "--batch-rows", type=int, metavar="N", help="rows that are scored together (default: max_batch_rows)"
    )
    parser.add_argument(
        "--format",
        choices=("npy", "npz", "csv", "parquet", "jsonl"),
        help="of the answers (default: the rows')",
    )
    parser.add_argument(
        "--keep",
        default="",
        metavar="NAMES",
        help="columns that go into the answers as they are, with commas",
    )
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda:N, or a UUID")
    parser.add_argument("--threads", type=int, metavar="N", help="threads for one operation on the CPU")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="deployment file, one of whose models is MODEL"
    )
    add_workspace_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Score, and print a summary on standard output.

    Raises:
        InvalidInput: Rows do not fit the model.
    """
    from tqdm import tqdm

    from stoker.offline.files import Shard, score_files
    from stoker.offline.predictor import Predictor

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    exit_at_sigterm()
    shard = Shard.read(args.shard)
    # An entry script changes the current folder.
    inputs, output = [path.absolute() for path in args.input], args.output.absolute()
    keep = tuple(name.strip() for name in args.keep.split(",") if name.strip())
    sizes: dict[str, Any] = {} if args.batch_rows is None else {"max_batch_rows": args.batch_rows}
    with (
        # The output of a script must not mix with the summary.
        contextlib.redirect_stdout(sys.stderr),
        Predictor(
            args.model,
            args.device,
            batch_rows=args.batch_rows,
            keep=keep,
            workspace=args.workspace,
            config=args.config,
            threads=args.threads,
            **sizes,
        ) as predictor,
        tqdm(unit="row", disable=None, file=sys.stderr) as bar,
    ):
        options = {"batch_rows": args.batch_rows, "keep": keep}
        done = score_files(predictor, inputs, output, shard, args.format, options, bar.update)
    before = f", {done.before} were done before" if done.before else ""
    files = "1 file" if done.files == 1 else f"{done.files} files"
    sys.stdout.write(f"{files} with {done.rows} rows in {output}{before}\n")
    return 0
