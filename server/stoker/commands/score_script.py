"""`stoker score --script`: run a script for mini-batches over files, as Azure's batch endpoints do."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import InvalidSettings
from stoker.system.wording import format_count
from stoker_base.trees import files_below

if TYPE_CHECKING:
    from stoker.scripts.mini_batch import MiniBatchScript

DEFAULT_FILES: Final = 10
DEFAULT_ROWS: Final = 1000
_SERVER_OPTIONS: Final = ("uri", "name", "key", "workspace", "stream")


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that go with `--script`."""
    files = parser.add_argument_group(
        "with --script", "A script with run(mini_batch), as for Azure's batch endpoints, is run here."
    )
    files.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files, or folders with files")
    files.add_argument(
        "--mini-batch-size",
        type=int,
        metavar="N",
        help=f"files that run() gets at once (default: {DEFAULT_FILES}); with --tabular rows (default: "
        f"{DEFAULT_ROWS})",
    )
    files.add_argument(
        "--tabular",
        action="store_true",
        help="the files are tables (.csv, .parquet): run() gets data frames, for which pandas has to be installed",
    )
    files.add_argument(
        "--model-dir", type=Path, metavar="DIR", help="AZUREML_MODEL_DIR (default: the script's)"
    )
    files.add_argument(
        "--output", type=Path, metavar="FILE", help="where results go (default: standard output)"
    )
    files.add_argument(
        "--error-threshold",
        type=int,
        default=0,
        metavar="N",
        help="end when more than N files, or rows, have failed; -1 for never (default: 0)",
    )
    files.add_argument(
        "--script-arguments",
        default="",
        metavar="TEXT",
        help='arguments that init() parses: "--threshold 0.5"',
    )


def run_script(args: argparse.Namespace) -> int:
    """Run the script over the files; returns 0, or 1 if it ended because of too many failures."""
    size = _check_options(args)
    files = _find_files(args.files)
    # Before the current folder changes.
    script, output = args.script.absolute(), None if args.output is None else args.output.absolute()
    model_dir = (args.model_dir or script.parent).absolute()
    if not model_dir.is_dir():
        raise InvalidSettings(f"--model-dir {model_dir} is not a folder")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    batches = _read_tables(files, size) if args.tabular else _read_paths(files, size)
    total = None if args.tabular else len(files)
    with contextlib.ExitStack() as stack:
        results = sys.stdout if output is None else stack.enter_context(output.open("w", encoding="utf-8"))
        # Lines that the script prints must not get between its results.
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        loaded = _load(script, model_dir, shlex.split(args.script_arguments))
        unit = "row" if args.tabular else "file"
        return _run(loaded, batches, results, args.error_threshold, unit, total)


def _check_options(args: argparse.Namespace) -> int:
    """Return the size of a mini-batch."""
    misplaced = [f"--{name.replace('_', '-')}" for name in _SERVER_OPTIONS if getattr(args, name) is not None]
    if misplaced:
        raise InvalidSettings(f"{misplaced[0]} is for a running server; --script runs a script here")
    default = DEFAULT_ROWS if args.tabular else DEFAULT_FILES
    size: int = default if args.mini_batch_size is None else args.mini_batch_size
    if size < 1:
        raise InvalidSettings(f"--mini-batch-size has to be 1 or more, not {size}")
    if args.error_threshold < -1:
        raise InvalidSettings(f"--error-threshold has to be -1 or more, not {args.error_threshold}")
    if not args.files:
        raise InvalidSettings(
            "--script needs files: stoker score --script score.py FILE …, or a folder of them"
        )
    return size


def _find_files(given: Sequence[Path]) -> list[Path]:
    """Return the files, and those below the folders but for hidden ones, as absolute paths."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            below = (each for each in files_below(path) if each.is_file())
            found += sorted(each for each in below if not _is_hidden(each.relative_to(path)))
        elif path.is_file():
            found.append(path)
        else:
            raise InvalidSettings(f"there is no file or folder {path}")
    if not found:
        raise InvalidSettings(f"there are no files in {', '.join(map(str, given))}")
    return [path.absolute() for path in found]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _read_paths(files: Sequence[Path], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(files), size):
        yield [str(file) for file in files[begin : begin + size]]


def _read_tables(files: Sequence[Path], rows: int) -> Iterator[Any]:
    """Yield data frames of at most so many rows, each of one file."""
    try:
        import pandas as pd
    except ImportError as error:
        raise InvalidSettings("--tabular needs pandas: pip install pandas") from error
    for file in files:
        try:
            if file.suffix == ".parquet":
                frame = pd.read_parquet(file)
                yield from (frame.iloc[begin : begin + rows] for begin in range(0, len(frame), rows))
            else:
                # pandas gives a frame for a table without rows, too.
                yield from (frame for frame in pd.read_csv(file, chunksize=rows) if len(frame))
        except (ImportError, OSError, ValueError) as error:
            raise InvalidSettings(f"{file} cannot be read as a table: {error}") from error


def _load(script: Path, model_dir: Path, arguments: Sequence[str]) -> MiniBatchScript:
    from stoker.scripts.mini_batch import MiniBatchScript, enter_folder

    if script.is_file():
        enter_folder(script, model_dir, arguments)
    return MiniBatchScript(script, model_dir)


def _run(
    script: MiniBatchScript,
    batches: Iterator[Any],
    results: Any,
    threshold: int,
    unit: str,
    total: int | None,
) -> int:
    from tqdm import tqdm

    tally = script.tally
    with tqdm(total=total, unit=unit, disable=None, file=sys.stderr) as bar:
        for batch in batches:
            script.score(batch, lambda line: results.write(f"{line}\n"))
            results.flush()
            bar.update(len(batch))
            if 0 <= threshold < tally.failed:
                break
    script.shut_down()
    if 0 <= threshold < tally.failed:
        sys.stderr.write(
            f"stoker score: {tally.failed} of {format_count(tally.items, unit)} have failed, and --error-threshold "
            f"is {threshold}: it ended with {format_count(tally.lines, 'result')}\n"
        )
        return 1
    if tally.failed:
        sys.stderr.write(f"stoker score: {tally.failed} of {tally.items} {unit}s have no result\n")
    return 0
