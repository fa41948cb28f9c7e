"""`stoker score`: send rows, images or files to a running server, or run a script over files; print the answers."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from stoker.commands.running_server import (
    PORT_VARIABLE,
    SERVER,
    add_ca_argument,
    connection_advice,
    find_model_names,
    find_server,
    on_loopback,
    server_here,
)
from stoker.commands.score_bodies import is_image, send_files
from stoker.commands.score_script import add_script_arguments, run_script
from stoker.commands.terminal import add_workspace_argument
from stoker.errors import InvalidSettings, OperatorError
from stoker.system.logs import escaped, escaped_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stoker.supervisor.server_record import ServerRecord
    from stoker_client import Answer, Client

KEY_VARIABLES = ("STOKER_KEY", "STOKER_PRIMARY_KEY")
REQUEST_ROWS = 256
RETRIES = 2

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
        help="an image to score, as the file is; repeatable",
    )
    rows.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="a body that is sent unchanged, with the media type of its name: audio, text …",
    )
    rows.add_argument(
        "--script",
        type=Path,
        metavar="SCRIPT",
        help="run this script with run(mini_batch) here, over FILE …; no server is asked",
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        default=None,
        help="with --data: send the body in one request, and print each piece of the answer as one line of JSON when "
        "it is there; for scripts that yield",
    )
    parser.add_argument(
        "--uri",
        help=f"the scoring URI (default: that of the port of ${PORT_VARIABLE}, else of the only server of the "
        f"workspace that runs here, else {SERVER}/score)",
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
    add_script_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Score, print the answers, and return 0, or 1 if the server answered with an error."""
    if args.script is not None:
        return run_script(args)
    if args.files:
        raise InvalidSettings(f"{args.files[0]} goes with --script; rows for a server go by --data FILE")
    return _ask_server(args)


def _ask_server(args: argparse.Namespace) -> int:
    from stoker_client import Client, ConnectionFailed, InvalidRows, StokerClientError, Unauthorized

    if args.stream and args.data is None:
        raise InvalidSettings("--stream goes with --data FILE: other answers come at once")
    record = None if args.uri else find_server(args.workspace, args.name)
    name = args.name or (None if record is None else _only_model(record, args.workspace))
    uri = args.uri or _default_uri(server_here() if record is None else record.uri, args.name)
    authorities = args.cacert or (None if record is None else record.ca_path)
    key, origin = _find_key(args, name, uri)
    try:
        client = Client(uri, key, retries=RETRIES, ca_file=authorities)
    except ValueError as error:
        raise InvalidSettings(str(error)) from error
    except OSError as error:
        raise InvalidSettings(f"--cacert {args.cacert} cannot be used: {error.strerror or error}") from error
    with client:
        try:
            if args.data is None:
                files = _check_files(args.image or [args.file], are_images=bool(args.image))
                answer = send_files(files, uri, key, authorities)
                _print_answer(answer, len(files) if args.image else None)
            elif args.stream:
                _print_pieces(client, args.data)
            else:
                _score_data(client, args.data)
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


def _check_files(files: Sequence[Path], *, are_images: bool) -> Sequence[Path]:
    for file in files:
        if not file.is_file():
            raise InvalidSettings(f"there is no file {file}")
        if are_images and not is_image(file):
            raise InvalidSettings(f"{file} is no image: --data sends rows, --file any other body")
    return files


def _default_uri(server: str, name: str | None) -> str:
    from stoker.settings.names import checked_service

    if name is None:
        return f"{server}/score"
    return f"{server}/api/v1/service/{quote(checked_service(name, 'service'))}/score"


def _only_model(record: ServerRecord, workspace: Path | None) -> str | None:
    """The model that `/score` means, whose keys are wanted; None if the server has several."""
    names = find_model_names(record, workspace)
    return names[0] if len(names) == 1 else None


def _find_key(args: argparse.Namespace, name: str | None, uri: str) -> tuple[str | None, str]:
    """The key to send and where it came from, in words; no key and no words where there is none."""
    from stoker.settings.workspace import Workspace

    if args.key:
        return args.key, "--key"
    for variable in KEY_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable], f"${variable}"
    keys_dir = Workspace.find(args.workspace).keys_dir
    key = key_from_workspace(keys_dir, name, uri)
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
