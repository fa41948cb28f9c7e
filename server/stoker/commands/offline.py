"""`stoker offline`: score files without a server, in shards that many processes can share."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.commands.terminal import add_workspace_argument, exit_at_sigterm, note
from stoker.settings.names import read_address
from stoker.settings.workspace import Workspace
from stoker.system.wording import format_count

if TYPE_CHECKING:
    from stoker.offline.files import ShardResult
    from stoker.offline.sent_answers import SentAnswers
    from stoker.offline.shards import Shard


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
        help="files with rows, or folders of them; also addresses, such as s3://bucket/rows",
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="the folder of the answers, or its address"
    )
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
        OperatorError: Files cannot be fetched from their address, or answers not sent to theirs.
    """
    from stoker.offline.shards import Shard

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    exit_at_sigterm()
    shard, workspace = Shard.read(args.shard), Workspace.find(args.workspace)
    with contextlib.ExitStack() as fetched:
        # Absolute, as an entry script changes the current folder.
        inputs, digests = _fetch_inputs(args.input, workspace, fetched)
        output, sent = _open_output(args.output, workspace, fetched)
        done = _score(args, shard, inputs, digests, output, sent)
    shown = str(output) if sent is None else sent.shown
    before = f", {done.before} done before" if done.before else ""
    files, rows = format_count(done.files, "file"), format_count(done.rows, "row")
    sys.stdout.write(f"{files} with {rows} in {shown}{before}\n")
    return 0


def _score(
    args: argparse.Namespace,
    shard: Shard,
    inputs: Sequence[Path],
    digests: Mapping[Path, str],
    output: Path,
    sent: SentAnswers | None,
) -> ShardResult:
    from tqdm import tqdm

    from stoker.offline.files import score_files
    from stoker.offline.predictor import Predictor

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
        return score_files(
            predictor, inputs, output, shard, args.format, options, bar.update, digests=digests, sent=sent
        )


def _fetch_inputs(
    paths: Sequence[Path], workspace: Workspace, fetched: contextlib.ExitStack
) -> tuple[list[Path], dict[Path, str]]:
    """Return where the rows are on this machine, and the SHA-256 of files that were fetched."""
    from stoker.models.fetching import fetch_path

    found: list[Path] = []
    digests: dict[Path, str] = {}
    for given in paths:
        path, mirror = fetch_path(given, workspace, note)
        if mirror is not None:
            fetched.callback(os.close, mirror.hold())
            digests |= {
                (path if path.is_file() else path / name): digest for name, digest in mirror.digests.items()
            }
        found.append(path.absolute())
    return found, digests


def _open_output(
    given: Path, workspace: Workspace, fetched: contextlib.ExitStack
) -> tuple[Path, SentAnswers | None]:
    """Return the folder of the answers, and their sender if `given` is an address."""
    from stoker.models.mirrors import mirrors_dir
    from stoker.offline.sent_answers import SentAnswers
    from stoker.system.durable import private_folder

    address = read_address(given)
    if address is None:
        return given.absolute(), None
    cache = private_folder(mirrors_dir(workspace.create()))
    folder = Path(
        fetched.enter_context(tempfile.TemporaryDirectory(prefix=".answers-", dir=workspace.root))
    ).absolute()
    return folder, SentAnswers(address.rstrip("/"), cache, folder)
