"""`stoker score`: send rows, images or files to a running server, or run a script over files; print the answers."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from stoker.commands.running_server import (
    PORT_VARIABLE,
    SERVER,
    add_ca_argument,
    connection_advice,
    on_loopback,
    server_here,
)
from stoker.commands.score_protocols import AZURE, PROTOCOLS, Target
from stoker.commands.terminal import add_workspace_argument
from stoker.errors import InvalidSettings, OperatorError
from stoker.settings.names import read_address
from stoker.system.logs import escaped, escaped_json
from stoker_base.trees import files_below

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stoker_client import Answer, Client

    Image: TypeAlias = NDArray[np.uint8]
    """uint8[height, width], 0 for background."""
    from stoker.scripts.mini_batch import MiniBatchScript

# `stoker score --script`: run a script for mini-batches over files, offline.


DEFAULT_FILES: Final = 10
DEFAULT_ROWS: Final = 1000
_SERVED: Final = ("uri", "name", "key", "workspace", "data_dir", "stream", "protocol")


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
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


def score_files(args: argparse.Namespace) -> int:
    """Run the script over the files; returns 0, or 1 if it ended because of too many failures."""
    size = _checked(args)
    files = _files(args.files)
    # Before the current folder changes.
    script, output = args.script.absolute(), None if args.output is None else args.output.absolute()
    model_dir = (args.model_dir or script.parent).absolute()
    if not model_dir.is_dir():
        raise InvalidSettings(f"--model-dir {model_dir} is not a folder")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    batches = _tables(files, size) if args.tabular else _paths(files, size)
    total = None if args.tabular else len(files)
    with contextlib.ExitStack() as stack:
        results = sys.stdout if output is None else stack.enter_context(output.open("w", encoding="utf-8"))
        # What the script prints must not get between its results.
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        loaded = _load(script, model_dir, shlex.split(args.script_arguments))
        unit = "row" if args.tabular else "file"
        return _run(loaded, batches, results, args.error_threshold, unit, total)


def _checked(args: argparse.Namespace) -> int:
    """The size of a mini-batch."""
    misplaced = [f"--{name.replace('_', '-')}" for name in _SERVED if getattr(args, name) is not None]
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


def _files(given: Sequence[Path]) -> list[Path]:
    """The files and those below the folders, hidden ones left out, as absolute paths."""
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


def _paths(files: Sequence[Path], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(files), size):
        yield [str(file) for file in files[begin : begin + size]]


def _tables(files: Sequence[Path], rows: int) -> Iterator[Any]:
    """Data frames of at most so many rows, none of two files."""
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
                # Of a table without rows there is a frame too.
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
            f"stoker score: {tally.failed} of {tally.items} {unit}s have failed, and --error-threshold is "
            f"{threshold}: it ended with {tally.lines} results\n"
        )
        return 1
    if tally.failed:
        sys.stderr.write(f"stoker score: {tally.failed} of {tally.items} {unit}s have no result\n")
    return 0


KEY_VARIABLES = ("STOKER_KEY", "STOKER_PRIMARY_KEY")
REQUEST_ROWS = 256
RETRIES = 2

_SHADES = " .:-=+*#%@"
_SERVICE_PATH = re.compile(r"/api/v1/service/([^/]+)/score/?$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "The answer of each row is printed as one line of JSON.\n"
        "Exit codes: 0 answered, 1 the server answered with an error, 2 it could not be asked.\n"
        "With --script: 1 too many files failed, 2 an option or file is wrong, 3 the script cannot be loaded."
    )
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument(
        "--data",
        metavar="FILE",
        help='rows to score: JSON (a body {"data": [...]} or a list of rows), .npy, .csv, or - for JSON on '
        f"standard input; more than {REQUEST_ROWS} rows go in several requests, any other body as it is",
    )
    rows.add_argument(
        "--image",
        action="append",
        type=Path,
        metavar="FILE",
        help="an image to score, as the file is; repeatable. By v2 it is a string of the model's input",
    )
    rows.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="a body that is sent unchanged, with the media type of its name: audio, text, or JSON of the protocol",
    )
    rows.add_argument("--mnist", type=int, metavar="INDEX", help="score this image of the MNIST test set")
    rows.add_argument(
        "--script",
        type=Path,
        metavar="SCRIPT",
        help="run this script with run(mini_batch) here, over FILE …; no server is asked",
    )
    rows.add_argument(
        "--input",
        nargs="+",
        metavar="FILE",
        help="score files of rows, folders or addresses (s3://bucket/rows) here, as stoker offline does: stoker "
        "score MODEL --input FILE --output DIR; no server is asked",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="the folder with MNIST's IDX files, for --mnist"
    )
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        help="azure (the default), or v2 (Open Inference Protocol)",
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        default=None,
        help="with --data: send the body in one request, and print each piece of the answer as one line of JSON when "
        "it is there; for scripts that yield",
    )
    parser.add_argument(
        "--uri", help=f"the scoring URI (default: {SERVER}/score, or the port of ${PORT_VARIABLE})"
    )
    parser.add_argument(
        "--name",
        metavar="SERVICE",
        help="the service; without --uri the URI ends in /api/v1/service/SERVICE/score",
    )
    parser.add_argument(
        "--key",
        help=f"bearer key (default: ${KEY_VARIABLES[0]}, ${KEY_VARIABLES[1]}, else the primary key in the "
        "workspace, which goes to servers on this machine only)",
    )
    add_workspace_argument(parser)
    add_ca_argument(parser)
    add_file_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Score, print the answers, and return 0, or 1 if the server answered with an error."""
    if args.script is not None:
        return score_files(args)
    if args.input is not None:
        return _score_offline(args)
    if args.files:
        raise InvalidSettings(f"{args.files[0]} goes with --script; rows for a server go by --data FILE")
    return _ask_server(args)


def _score_offline(args: argparse.Namespace) -> int:
    """Do what `stoker offline MODEL --input FILE --output DIR` does."""
    from stoker.commands import offline

    misplaced = [name for name in _SERVED if name != "workspace" and getattr(args, name) is not None]
    if misplaced:
        raise InvalidSettings(
            f"--{misplaced[0].replace('_', '-')} is for a running server; --input asks none"
        )
    if len(args.files) != 1 or args.output is None:
        raise InvalidSettings(
            "--input needs a model and --output: stoker score MODEL --input FILE --output DIR"
        )
    parser = argparse.ArgumentParser()
    offline.add_arguments(parser)
    words = [str(read_address(args.files[0]) or args.files[0]), "--input", *args.input]
    more = [] if args.workspace is None else ["--workspace", str(args.workspace)]
    return offline.run(parser.parse_args([*words, "--output", str(args.output), *more]))


def _ask_server(args: argparse.Namespace) -> int:
    from stoker_client import Client, ConnectionFailed, InvalidRows, StokerClientError, Unauthorized

    if (args.mnist is None) != (args.data_dir is None):
        raise InvalidSettings("--mnist INDEX and --data-dir FOLDER go together: the folder has the image")
    protocol = args.protocol or AZURE
    if args.stream and (args.data is None or protocol != AZURE):
        raise InvalidSettings(
            "--stream goes with --data FILE and the protocol azure: other answers come at once"
        )
    uri = args.uri or _default_uri(args.name)
    key, origin = _find_key(args, uri)
    target = Target(protocol, uri, args.name, key, args.cacert)
    if protocol == AZURE and args.image is None and args.file is None:
        try:
            client = Client(uri, key, retries=RETRIES, ca_file=args.cacert)
        except ValueError as error:
            raise InvalidSettings(str(error)) from error
        except OSError as error:
            raise InvalidSettings(
                f"--cacert {args.cacert} cannot be used: {error.strerror or error}"
            ) from error
    else:
        client = None
    with client or contextlib.nullcontext():
        try:
            _send(args, target, client)
        except InvalidRows as error:
            raise InvalidSettings(str(error)) from error
        except ConnectionFailed as error:
            raise OperatorError(f"{error}\n{connection_advice(str(error))}") from error
        except Unauthorized as error:
            raise OperatorError(f"{error}\n{_key_advice(origin)}") from error
        except StokerClientError as error:
            sys.stderr.write(f"stoker score: {escaped(str(error))}\n")
            if not urlsplit(uri).path.strip("/"):
                sys.stderr.write(
                    f"The scoring URI of a server ends in /score: --uri {uri.rstrip('/')}/score\n"
                )
            return 1
    return 0


def _send(args: argparse.Namespace, target: Target, client: Client | None) -> None:
    """Send what the arguments name, and print the answer.

    Args:
        client: What sends rows by Azure's protocol; None for files, and for other protocols.
    """
    if client is None and args.mnist is not None:
        _score_digit(target.infer, args.data_dir, args.mnist)
    elif client is None and args.data is not None:
        body = _read_body(args.data)
        if body.keys() != {"data"}:
            raise InvalidSettings(
                f'{args.data} holds no {{"data": …}}; a body of another form goes by --file {args.data}'
            )
        rows = body["data"]
        _print_answer(target.infer(rows), _row_count(rows))
    elif client is None:
        _send_files(args, target)
    elif args.stream:
        _print_pieces(client, args.data)
    elif args.data is not None:
        _score_data(client, args.data)
    else:
        _score_digit(lambda rows: client.score_json({"data": rows}), args.data_dir, args.mnist)


def _send_files(args: argparse.Namespace, target: Target) -> None:
    for file in args.image or (args.file,):
        if not file.is_file():
            raise InvalidSettings(f"there is no file {file}")
    if args.file is not None:
        _print_answer(target.send_files([args.file]), None)
    elif target.protocol == AZURE:
        _print_answer(target.send_files(args.image), len(args.image))
    else:
        _print_answer(target.infer([file.read_bytes() for file in args.image]), len(args.image))


def _default_uri(name: str | None) -> str:
    from stoker.settings.names import checked_service

    if name is None:
        return f"{server_here()}/score"
    return f"{server_here()}/api/v1/service/{quote(checked_service(name, 'service'))}/score"


def _find_key(args: argparse.Namespace, uri: str) -> tuple[str | None, str]:
    """The key to send and where it came from, in words; no key and no words where there is none."""
    from stoker.settings.workspace import Workspace

    if args.key:
        return args.key, "--key"
    for variable in KEY_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable], f"${variable}"
    keys_dir = Workspace.find(args.workspace).keys_dir
    key = key_from_workspace(keys_dir, args.name, uri)
    return key, f"{keys_dir}" if key else ""


def key_from_workspace(keys_dir: Path, name: str | None, uri: str) -> str | None:
    """Return the primary key of the service in the URI; None if the service is unclear or has no key.

    A key of this workspace opens this machine's server, so it is not sent to any other.
    """
    from stoker.keys.keyring import Keyring, services_with_keys

    if not on_loopback(uri):
        return None
    services = services_with_keys(keys_dir)
    in_path = _SERVICE_PATH.search(urlsplit(uri).path)
    if name is None and in_path:
        name = unquote(in_path[1])
    if name is None and len(services) == 1:
        name = services[0]
    if name not in services:
        return None
    try:
        return Keyring(keys_dir, name).show().primary
    except OSError as error:
        raise InvalidSettings(
            f"the keys of service {name} in {keys_dir} cannot be read ({error.strerror}); "
            f"give one with --key or ${KEY_VARIABLES[0]}"
        ) from error


def _key_advice(origin: str) -> str:
    sent = f"The key from {origin} is not valid for this service" if origin else "No key was found"
    return (
        f"{sent}. `stoker keys show` prints the keys, on the machine of the server; give one with --key or "
        f"${KEY_VARIABLES[0]}, or choose the service with --name."
    )


def _score_data(client: Client, source: str) -> None:
    import numpy as np

    body = _read_body(source)
    rows = body["data"] if body.keys() == {"data"} else None
    if isinstance(rows, list | np.ndarray) and len(rows) > REQUEST_ROWS:
        answer = client.score_many(rows, batch_rows=REQUEST_ROWS, progress=True)
    else:
        answer = client.score_json(body)
    _print_answer(answer, _row_count(rows))


def _row_count(rows: Any) -> int | None:
    """How many rows there are; of several inputs, those of the first."""
    if isinstance(rows, dict) and rows:
        rows = next(iter(rows.values()))
    return len(rows) if hasattr(rows, "__len__") and not isinstance(rows, str) else None


def _print_answer(answer: Answer, row_count: int | None) -> None:
    for entry in _entries(_plain(answer), row_count):
        sys.stdout.write(escaped_json(json.dumps(entry, ensure_ascii=False)) + "\n")


def _print_pieces(client: Client, source: str) -> None:
    with client.stream(_read_body(source)) as pieces:
        for piece in pieces:
            sys.stdout.write(escaped_json(json.dumps(piece, ensure_ascii=False)) + "\n")
            sys.stdout.flush()


def _read_body(source: str) -> dict[str, Any]:
    """Read the rows or the body, as a body."""
    import numpy as np

    try:
        if source == "-":
            return _body_from_json(sys.stdin.buffer.read(), "standard input")
        path = Path(source)
        if path.suffix == ".npy":
            return {"data": np.load(path, allow_pickle=False)}
        if path.suffix == ".csv":
            return {"data": _rows_from_csv(path)}
        return _body_from_json(path.read_bytes(), source)
    except OSError as error:
        raise InvalidSettings(f"{source} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(
            f"{source} cannot be read: it is no UTF-8 text. JSON, .npy and .csv can be; an image goes to a model "
            f"that takes images: stoker score --image {shlex.quote(source)}; anything else with --file"
        ) from error
    except json.JSONDecodeError as error:
        raise InvalidSettings(
            f'{source} cannot be read: it is no JSON ({error}); a body is {{"data": [row, …]}}'
        ) from error
    except (ValueError, EOFError, RecursionError) as error:
        raise InvalidSettings(f"{source} cannot be read: {error}") from error


def _body_from_json(content: bytes, source: str) -> dict[str, Any]:
    body = json.loads(content)
    if isinstance(body, list):
        return {"data": body}
    if not isinstance(body, dict):
        raise InvalidSettings(f'{source} has to hold a body {{"data": [...]}} or a list of rows')
    return body


def _rows_from_csv(path: Path) -> NDArray[np.float64]:
    """Read rows of numbers, float64[rows, columns]; skip a first line of names, and warn of one that may be names."""
    import numpy as np

    from stoker.wire.row_files import warn_of_numbered_header

    lines = path.read_text(encoding="utf-8-sig").splitlines()
    try:
        np.loadtxt(lines[:1], delimiter=",", ndmin=2)
    except ValueError:
        lines = lines[1:]
    else:
        if lines and (warning := warn_of_numbered_header(path, lines[0])):
            sys.stderr.write(f"stoker score: {escaped(warning)}\n")
    if not any(line.strip() for line in lines):
        raise ValueError("it has no rows")
    return np.loadtxt(lines, delimiter=",", ndmin=2)


def _plain(answer: Answer) -> Any:  # JSON
    """Return the answer as plain JSON; `score_many` returns arrays."""
    if isinstance(answer, dict):
        return {name: _plain(value) for name, value in answer.items()}
    if hasattr(answer, "dtype") and answer.dtype in ("float32", "float16"):
        # The shortest decimals, as in the server's JSON: 0.1 of float32 is 0.10000000149011612 as float64.
        answer = answer.astype(str).astype(float)
    return answer.tolist() if hasattr(answer, "tolist") else answer


def _entries(answer: Any, row_count: int | None) -> Iterator[Any]:  # JSON
    """Split an answer into one entry a row, where it has as many; for several outputs, an object a row."""
    if isinstance(answer, list) and len(answer) == row_count:
        yield from answer
    elif (
        isinstance(answer, dict) and answer and all(_has_rows(value, row_count) for value in answer.values())
    ):
        for values in zip(*answer.values(), strict=True):
            yield dict(zip(answer, values, strict=True))
    else:
        yield answer


def _has_rows(value: object, row_count: int | None) -> bool:
    return isinstance(value, list) and len(value) == row_count


def _score_digit(score: Callable[[Any], Any], folder: Path, index: int) -> None:
    import numpy as np

    from stoker.wire.row_files import find_idx, read_idx

    takes = "--data-dir takes MNIST's test files"
    images = read_idx(find_idx(folder, "t10k-images", "idx3-ubyte", takes), dimensions=3)
    labels = read_idx(find_idx(folder, "t10k-labels", "idx1-ubyte", takes), dimensions=1)
    if not 0 <= index < min(len(images), len(labels)):
        raise InvalidSettings(f"--mnist has to be 0 to {min(len(images), len(labels)) - 1}, not {index}")
    rows = images[index].reshape(1, -1).astype(np.float32) / np.float32(255)
    (entry, *_) = _entries(score(rows), 1)
    sys.stdout.write(f"{_art(images[index])}\nlabel   {labels[index]}\nanswer  {_described(entry)}\n")


def _art(image: Image) -> str:
    """Text art, two image rows a line, for characters are about twice as high as wide."""
    import numpy as np

    height = len(image) // 2 * 2
    brightness = image[:height].reshape(height // 2, 2, -1).mean(axis=1)
    shades = np.rint(brightness * (len(_SHADES) - 1) / 255).astype(int)
    return "\n".join("".join(_SHADES[shade] for shade in line).rstrip() for line in shades)


def _described(entry: Any) -> str:  # JSON
    """An answer in words: a class as it is, logits with their largest."""
    text = json.dumps(entry, ensure_ascii=False)
    if isinstance(entry, list) and entry and all(isinstance(value, int | float) for value in entry):
        return f"{entry.index(max(entry))}, the largest of {text}"
    return text
