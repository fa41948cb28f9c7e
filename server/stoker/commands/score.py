"""`stoker score`: send rows or a test image to a running server, or files through a script, and print the answers."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from stoker.commands.running_server import (
    PORT_VARIABLE,
    SERVER,
    add_ca_argument,
    connection_advice,
    on_loopback,
    server_here,
)
from stoker.commands.score_files import add_file_arguments, score_files
from stoker.counted_names import told_of_counted_names
from stoker.errors import InvalidSettings, OperatorError
from stoker.system.logs import escaped, escaped_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from stoker_client import Answer, Client

    Image: TypeAlias = NDArray[np.uint8]
    """uint8[height, width], 0 for background."""

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "send rows or a test image to a running server, or files through a script, and print the answers"

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
    rows.add_argument("--mnist", type=int, metavar="INDEX", help="score this image of the MNIST test set")
    rows.add_argument(
        "--script",
        type=Path,
        metavar="SCRIPT",
        help="run this script with run(mini_batch) here, over FILE …; no server is asked",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="the folder with MNIST's IDX files, for --mnist"
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
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="workspace directory (default: .stoker)"
    )
    add_ca_argument(parser)
    add_file_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Score, print the answers, and return 0, or 1 if the server answered with an error.

    Raises:
        OperatorError: The rows cannot be read, or the server cannot be reached or does not accept the key.
    """
    if args.script is not None:
        return score_files(args)
    if args.files:
        raise InvalidSettings(f"{args.files[0]} goes with --script; rows for a server go by --data FILE")
    return _ask_server(args)


def _ask_server(args: argparse.Namespace) -> int:
    from stoker_client import Client, ConnectionFailed, InvalidRows, StokerClientError, Unauthorized

    if (args.mnist is None) != (args.data_dir is None):
        raise InvalidSettings("--mnist INDEX and --data-dir FOLDER go together: the folder has the image")
    if args.stream and args.data is None:
        raise InvalidSettings("--stream goes with --data FILE: an image of MNIST is answered at once")
    uri = args.uri or _default_uri(args.name)
    key, origin = _find_key(args, uri)
    try:
        client = Client(uri, key, retries=RETRIES, ca_file=args.cacert)
    except ValueError as error:
        raise InvalidSettings(str(error)) from error
    except OSError as error:
        raise InvalidSettings(f"--cacert {args.cacert} cannot be used: {error.strerror or error}") from error
    with client:
        try:
            if args.stream:
                _print_pieces(client, args.data)
            elif args.data is not None:
                _score_data(client, args.data)
            else:
                _score_digit(client, args.data_dir, args.mnist)
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


def _default_uri(name: str | None) -> str:
    from stoker.names import checked_service

    if name is None:
        return f"{server_here()}/score"
    return f"{server_here()}/api/v1/service/{quote(checked_service(name, 'service'))}/score"


def _find_key(args: argparse.Namespace, uri: str) -> tuple[str | None, str]:
    """The key to send and where it came from, in words; no key and no words where there is none."""
    from stoker.workspace import Workspace

    if args.key:
        return args.key, "--key"
    for variable in KEY_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable], f"${variable}"
    keys_dir = Workspace.find(args.workspace).keys_dir
    key = _key_from_workspace(keys_dir, args.name, uri)
    return key, f"{keys_dir}" if key else ""


def _key_from_workspace(keys_dir: Path, name: str | None, uri: str) -> str | None:
    """The primary key of the service that the URI means; None if that is unclear or it has none.

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
    row_count = len(rows) if isinstance(rows, list | np.ndarray) else None
    if isinstance(rows, list | np.ndarray) and len(rows) > REQUEST_ROWS:
        answer = client.score_many(rows, batch_rows=REQUEST_ROWS, progress=True)
    else:
        answer = client.score_json(body)
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
        posted = shlex.quote(f"@{source}")
        raise InvalidSettings(
            f"{source} cannot be read: it is no UTF-8 text. JSON, .npy and .csv can be; an image goes as it is to a "
            'model that takes images: curl -H "Authorization: Bearer KEY" -H "Content-Type: image/png" '
            f"--data-binary {posted} URI"
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
    """Rows of numbers, float64[rows, columns]; a first line with names is left out, one that may be some told of."""
    import numpy as np

    lines = path.read_text(encoding="utf-8-sig").splitlines()
    try:
        np.loadtxt(lines[:1], delimiter=",", ndmin=2)
    except ValueError:
        lines = lines[1:]
    else:
        if lines and (told := told_of_counted_names(path, lines[0])):
            sys.stderr.write(f"stoker score: {escaped(told)}\n")
    if not any(line.strip() for line in lines):
        raise ValueError("it has no rows")
    return np.loadtxt(lines, delimiter=",", ndmin=2)


def _plain(answer: Answer) -> Any:  # JSON
    """The answer as plain JSON; `score_many` gives arrays."""
    if isinstance(answer, dict):
        return {name: _plain(value) for name, value in answer.items()}
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


def _score_digit(client: Client, folder: Path, index: int) -> None:
    import numpy as np

    from stoker.idx import find_idx, read_idx

    takes = "--data-dir takes MNIST's test files"
    images = read_idx(find_idx(folder, "t10k-images", "idx3-ubyte", takes), dimensions=3)
    labels = read_idx(find_idx(folder, "t10k-labels", "idx1-ubyte", takes), dimensions=1)
    if not 0 <= index < min(len(images), len(labels)):
        raise InvalidSettings(f"--mnist has to be 0 to {min(len(images), len(labels)) - 1}, not {index}")
    rows = images[index].reshape(1, -1).astype(np.float32) / np.float32(255)
    (entry, *_) = _entries(client.score_json({"data": rows}), 1)
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
